// What host code calls of at::mps, which only a PyTorch for macOS has.
#include "commands.h"
#include "memory.h"

#include <ATen/mps/MPSProfiler.h>
#include <ATen/mps/MPSStream.h>
#include <c10/metal/error.h>

#include <cstring>

namespace at::mps {

// ---- Streams -------------------------------------------------------------------------------

using metal_host::CommandQueue;

MPSStream::MPSStream(Stream stream) : _stream(stream) {
  _serialQueue = dispatch_queue_create("metal gpu stream", DISPATCH_QUEUE_SERIAL);
  _commandEncoder = [MetalHostComputeEncoder new];
  _errorBuffer = (id<MTLBuffer>)metal_host::allocate_buffer(sizeof(c10::metal::ErrorMessages));
  auto memory = metal_host::memory_of(_errorBuffer);
  std::memset(memory->data, 0, memory->size);
}

MPSStream::~MPSStream() {
  [_commandEncoder release];
  [_errorBuffer release];
  dispatch_release(_serialQueue);
}

MTLComputeCommandEncoder_t MPSStream::commandEncoder() {
  return _commandEncoder;
}

void MPSStream::endKernelCoalescing() {
  [_commandEncoder endEncoding];
}

// A command buffer that is committed need not have run.
void MPSStream::synchronize(SyncType type) {
  if (type == SyncType::COMMIT_AND_WAIT) {
    endKernelCoalescing();
    CommandQueue::instance().wait();
    checkLastError();
  }
}

MTLBuffer_t MPSStream::getErrorBuffer() {
  return _errorBuffer;
}

void MPSStream::checkLastError() {
  const auto memory = metal_host::memory_of(_errorBuffer);
  auto* errors = reinterpret_cast<c10::metal::ErrorMessages*>(memory->data);
  if (errors->count == 0) {
    return;
  }
  const auto first = errors->msg[0];
  std::memset(memory->data, 0, memory->size);
  throw c10::AcceleratorError({first.func, first.file, first.line}, 1, first.message);
}

MPSStream* getDefaultMPSStream() {
  static auto* stream = new MPSStream(Stream(Stream::DEFAULT, Device(kMPS, 0)));
  return stream;
}

MPSStream* getCurrentMPSStream() {
  return getDefaultMPSStream();
}

void dispatch_sync_with_rethrow(dispatch_queue_t queue, void (^block)()) {
  metal_host::run_on_queue(queue, block);
}

// ---- The profiler, which records nothing ---------------------------------------------------

namespace Profiler {

MPSProfiler::MPSProfiler() : m_os_log_events(nullptr), m_os_log_intervals(nullptr) {}
MPSProfiler::~MPSProfiler() = default;

uint64_t MPSProfiler::beginProfileKernel(const void*, const std::string&, bool) {
  return 0;
}

uint64_t MPSProfiler::beginProfileKernel(const void*, const std::string&, const TensorList&) {
  return 0;
}

void MPSProfiler::endProfileKernel(const void*, SyncType) {}

} // namespace Profiler

Profiler::MPSProfiler& getMPSProfiler() {
  static auto* profiler = new Profiler::MPSProfiler;
  return *profiler;
}

} // namespace at::mps
