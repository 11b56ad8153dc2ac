// The classes behind sdk/Metal's protocols, on top of the executor.
#include "commands.h"

#include "../runtime/runtime.h"
#include "memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace metal_host {

// ---- The queue -----------------------------------------------------------------------------

CommandQueue& CommandQueue::instance() {
  static auto* queue = new CommandQueue;
  return *queue;
}

void CommandQueue::add(std::function<void()> command) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(command));
}

void CommandQueue::wait() {
  const std::lock_guard lock(mutex_);
  const auto commands = std::exchange(pending_, {});
  for (const auto& command : commands) {
    command();
  }
}

bool CommandQueue::is_idle() {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

std::map<std::string, int64_t> CommandQueue::dispatches() {
  const std::lock_guard lock(mutex_);
  return dispatches_;
}

void CommandQueue::count_dispatch(const std::string& kernel) {
  const std::lock_guard lock(mutex_);
  ++dispatches_[kernel];
}

namespace {

constexpr NSUInteger kBufferIndices = 31;
constexpr NSUInteger kMaxBytes = 4096; // of setBytes

std::vector<void*>& libraries() {
  static std::vector<void*> handles;
  return handles;
}

void check(bool condition, const std::string& message) {
  if (!condition) {
    throw std::runtime_error("Metal: " + message);
  }
}

struct alignas(16) Chunk {
  char bytes[16];
};

// What is bound to an index: memory of a buffer, or bytes of its own.
struct Binding {
  std::shared_ptr<DeviceMemory> memory;
  size_t offset = 0;
  std::vector<Chunk> bytes;
  size_t length = 0;

  metal_host_buffer buffer() {
    if (memory) {
      return {memory->data + offset, memory->data, memory->data + memory->size};
    }
    if (length == 0) {
      return {nullptr, nullptr, nullptr};
    }
    auto* data = bytes.front().bytes;
    return {data, data, data + length};
  }
};

using Bindings = std::array<Binding, kBufferIndices>;
using Lengths = std::array<uint32_t, kBufferIndices>;

struct Dispatch {
  const metal_host_kernel* kernel;
  Bindings bindings;
  Lengths threadgroup_lengths;
  std::array<uint32_t, 3> grid;
  std::array<uint32_t, 3> group;

  void run() {
    std::array<metal_host_buffer, kBufferIndices> buffers;
    std::transform(bindings.begin(), bindings.end(), buffers.begin(), [](Binding& b) { return b.buffer(); });
    const auto& options = CommandQueue::instance().options;
    const metal_host_dispatch dispatch{
        kernel, buffers.data(), kBufferIndices, threadgroup_lengths.data(), kBufferIndices,
        {grid[0], grid[1], grid[2]}, {group[0], group[1], group[2]}, options.schedule, options.host_threads, 0};
    CommandQueue::instance().count_dispatch(kernel->name);
    char message[1024];
    if (metal_host_run(&dispatch, message, sizeof message) != 0) {
      throw std::runtime_error(message);
    }
  }
};

std::array<uint32_t, 3> dimensions(MTLSize size, const char* name) {
  for (const auto value : {size.width, size.height, size.depth}) {
    check(value > 0 && value <= UINT32_MAX, std::string(name) + " of 1 to 2^32 - 1 threads along each dimension");
  }
  return {static_cast<uint32_t>(size.width), static_cast<uint32_t>(size.height), static_cast<uint32_t>(size.depth)};
}

} // namespace

void load_kernels(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  check(library != nullptr, library == nullptr ? dlerror() : "");
  libraries().push_back(library);
}

} // namespace metal_host

using namespace metal_host;

// ---- Buffers: `self` is a handle, which has no memory ---------------------------------------

@interface MetalHostBuffer : NSObject <MTLBuffer>
@end

@implementation MetalHostBuffer
- (instancetype)retain {
  retain_buffer(self);
  return self;
}
- (oneway void)release {
  release_buffer(self);
}
- (void*)contents {
  CommandQueue::instance().wait();
  return memory_of(self)->data;
}
- (NSUInteger)length {
  return memory_of(self)->size;
}
- (uint64_t)gpuAddress {
  return reinterpret_cast<uint64_t>(memory_of(self)->data);
}
@end

// ---- Pipelines -----------------------------------------------------------------------------

@interface MetalHostPipeline : NSObject <MTLComputePipelineState> {
 @public
  const metal_host_kernel* _kernel;
}
@end

@implementation MetalHostPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return _kernel->max_total_threads;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return 0;
}
@end

id<MTLComputePipelineState> metal_host::find_pipeline(const std::string& name) {
  static std::map<const metal_host_kernel*, MetalHostPipeline*> pipelines;
  for (auto library = libraries().rbegin(); library != libraries().rend(); ++library) {
    if (const auto* kernel = metal_host_find(*library, name.c_str())) {
      auto& pipeline = pipelines[kernel];
      if (pipeline == nil) {
        pipeline = [MetalHostPipeline new];
        pipeline->_kernel = kernel;
      }
      return pipeline;
    }
  }
  return nil;
}

std::vector<std::string> metal_host::kernel_names() {
  std::set<std::string> names;
  for (void* library : libraries()) {
    for (const auto* kernel = metal_host_kernels(library); kernel != nullptr; kernel = kernel->next) {
      names.insert(kernel->name);
    }
  }
  return {names.begin(), names.end()};
}

// ---- The encoder ---------------------------------------------------------------------------

// What is set stays from one dispatch to the next.
struct MetalHostEncoderState {
  MetalHostPipeline* pipeline = nil;
  Bindings bindings;
  Lengths threadgroup_lengths{};
};

@implementation MetalHostComputeEncoder
- (instancetype)init {
  _state = new MetalHostEncoderState;
  return [super init];
}
- (void)dealloc {
  delete _state;
  [super dealloc];
}
- (void)endEncoding {
  *_state = {};
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  check(state != nil, "setComputePipelineState: of nil");
  _state->pipeline = (MetalHostPipeline*)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  check(index < kBufferIndices, "buffer index " + std::to_string(index) + " is beyond 30");
  Binding binding;
  if (buffer != nil) {
    binding.memory = memory_of(buffer);
    binding.offset = offset;
    check(
        offset < binding.memory->size,
        "offset " + std::to_string(offset) + " in a buffer of " + std::to_string(binding.memory->size) + " bytes");
  }
  _state->bindings[index] = std::move(binding);
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  check(index < kBufferIndices, "buffer index " + std::to_string(index) + " is beyond 30");
  check(length > 0 && length <= kMaxBytes, "setBytes takes 1 to 4096 bytes, not " + std::to_string(length));
  Binding binding;
  binding.bytes.resize((length + sizeof(Chunk) - 1) / sizeof(Chunk));
  binding.length = length;
  std::memcpy(binding.bytes.data(), bytes, length);
  _state->bindings[index] = std::move(binding);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  check(index < kBufferIndices, "threadgroup index " + std::to_string(index) + " is beyond 30");
  check(length % 16 == 0, "threadgroup memory comes in multiples of 16 bytes, not " + std::to_string(length));
  _state->threadgroup_lengths[index] = static_cast<uint32_t>(length);
}
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  check(_state->pipeline != nil, "a dispatch without setComputePipelineState:");
  auto dispatch = std::make_shared<Dispatch>(Dispatch{
      _state->pipeline->_kernel, _state->bindings, _state->threadgroup_lengths, dimensions(threads, "a grid is"),
      dimensions(group, "a threadgroup is")});
  CommandQueue::instance().add([dispatch] { dispatch->run(); });
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  [self dispatchThreads:MTLSizeMake(groups.width * group.width, groups.height * group.height, groups.depth * group.depth)
      threadsPerThreadgroup:group];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  (void)scope; // dispatches run one after the other
}
@end

// ---- Queues of libdispatch -------------------------------------------------------------------

struct dispatch_queue_s {
  std::mutex mutex;
  std::atomic<const void*> owner{nullptr};
};

namespace {

const void* this_thread() {
  static thread_local const char thread = 0;
  return &thread;
}

} // namespace

void metal_host::run_on_queue(dispatch_queue_t queue, dispatch_block_t block) {
  check(queue->owner != this_thread(), "dispatch_sync from within the same queue never returns");
  const std::lock_guard lock(queue->mutex);
  queue->owner = this_thread();
  try {
    block();
  } catch (...) {
    queue->owner = nullptr;
    throw;
  }
  queue->owner = nullptr;
}

dispatch_queue_t dispatch_queue_create(const char*, dispatch_queue_attr_t) {
  return new dispatch_queue_s;
}

void dispatch_release(dispatch_queue_t queue) {
  delete queue;
}

// An exception does not pass through libdispatch: it ends the process there too.
void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block) {
  [&]() noexcept { run_on_queue(queue, block); }();
}
