#include "runtime.h"

#include "scheduler.h"
#include "signals.h"

#include <dlfcn.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

using namespace metal_host;

namespace {

std::atomic<uint64_t> dispatch_count{0};

constexpr uint32_t kDenormalsAreZero = 0x0040;
constexpr uint32_t kFlushToZero = 0x8000;

class DenormalMode {
 public:
  explicit DenormalMode(bool keep) : saved_(_mm_getcsr()) {
    constexpr auto flags = kDenormalsAreZero | kFlushToZero;
    _mm_setcsr(keep ? saved_ & ~flags : saved_ | flags);
  }
  ~DenormalMode() {
    _mm_setcsr(saved_);
  }

 private:
  uint32_t saved_;
};

std::string check(const metal_host_dispatch& dispatch) {
  const auto& kernel = *dispatch.kernel;
  const uint64_t threads = uint64_t{dispatch.group[0]} * dispatch.group[1] * dispatch.group[2];
  if (threads == 0 || threads > kernel.max_total_threads) {
    return "a threadgroup has 1 to " + std::to_string(kernel.max_total_threads) + " threads, not " +
        std::to_string(threads);
  }
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind == METAL_HOST_THREADGROUP_MEMORY &&
        (argument.index >= dispatch.threadgroup_count || dispatch.threadgroup_lengths[argument.index] == 0)) {
      return "threadgroup(" + std::to_string(argument.index) + ") is given no memory";
    }
    if (argument.kind != METAL_HOST_BUFFER) {
      continue;
    }
    const auto name = "buffer(" + std::to_string(argument.index) + ")";
    if (argument.index >= dispatch.buffer_count) {
      return name + " is not bound";
    }
    const auto& buffer = dispatch.buffers[argument.index];
    const auto size = buffer.end - static_cast<const char*>(buffer.data);
    if (argument.is_reference && buffer.data != nullptr && size < argument.size) {
      return name + " is a reference to " + std::to_string(argument.size) + " bytes, but " + std::to_string(size) +
          " are bound";
    }
    if (reinterpret_cast<uintptr_t>(buffer.data) % argument.alignment != 0) {
      return name + " needs an alignment of " + std::to_string(argument.alignment) + " bytes";
    }
  }
  return {};
}

// A buffer that no parameter may write is named so, and stays as it is.
bool is_writable(const metal_host_kernel& kernel, uint32_t index) {
  const auto end = kernel.arguments + kernel.argument_count;
  return std::any_of(kernel.arguments, end, [&](const metal_host_argument& argument) {
    return argument.kind == METAL_HOST_BUFFER && argument.index == index && !argument.is_constant;
  });
}

int report(const metal_host_kernel& kernel, const std::string& text, char* message, size_t size) {
  std::snprintf(message, size, "kernel %s, %s", kernel.name, text.c_str());
  return 1;
}

} // namespace

extern "C" {

int metal_host_run(const metal_host_dispatch* dispatch, char* message, size_t message_size) {
  const auto& kernel = *dispatch->kernel;
  ++dispatch_count;
  if (const auto error = check(*dispatch); !error.empty()) {
    return report(kernel, error, message, message_size);
  }
  Shared shared{*dispatch};
  for (int i = 0; i < 3; ++i) {
    const auto group = dispatch->group[i];
    shared.groups[i] = static_cast<uint32_t>((uint64_t{dispatch->grid[i]} + group - 1) / group);
  }
  for (uint32_t i = 0; i < dispatch->buffer_count; ++i) {
    const auto& buffer = dispatch->buffers[i];
    shared.pointers.push_back(buffer.data);
    shared.buffers.push_back({buffer.begin, buffer.end, is_writable(kernel, i), "buffer(" + std::to_string(i) + ")"});
  }
  add_image(&kernel);
  install_signal_handlers();

  const auto work = [&shared, dispatch] {
    static thread_local Worker worker;
    static thread_local const SignalStack stack;
    const DenormalMode mode(dispatch->keep_denormals);
    worker.run(shared);
  };
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < dispatch->host_threads; ++i) {
    helpers.emplace_back(work);
  }
  work();
  for (auto& helper : helpers) {
    helper.join();
  }
  return shared.failed ? report(kernel, shared.failure, message, message_size) : 0;
}

const metal_host_kernel* metal_host_kernels(void* library) {
  using function_t = const metal_host_kernel* (*)();
  const auto function = reinterpret_cast<function_t>(dlsym(library, "metal_host_first_kernel"));
  return function == nullptr ? nullptr : function();
}

const metal_host_kernel* metal_host_find(void* library, const char* name) {
  const auto* kernel = metal_host_kernels(library);
  while (kernel != nullptr && std::strcmp(kernel->name, name) != 0) {
    kernel = kernel->next;
  }
  return kernel;
}

void metal_host_read_counters(metal_host_counters* counters) {
  *counters = {dispatch_count, group_count, barrier_count, simd_operation_count};
}

// ---- What kernels call ---------------------------------------------------------------------

void metal_host_barrier(unsigned mem_flags) {
  Worker::current()->wait_at_barrier(mem_flags, __builtin_return_address(0));
}

metal_host_lanes metal_host_exchange(const void* value, unsigned size, unsigned operation) {
  return Worker::current()->exchange(value, size, operation, __builtin_return_address(0));
}

void* metal_host_threadgroup_variable(const void* key, unsigned long size, unsigned long alignment) {
  return Worker::current()->threadgroup_variable(key, size, alignment);
}
}
