// The device's work: encoded now, done when the host waits for it.
#pragma once

#include <Metal/Metal.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

struct metal_host_kernel;

namespace metal_host {

// How kernels run; see runtime.h.
struct RunOptions {
  int32_t schedule = 0;
  uint32_t host_threads = 1;
};

class CommandQueue {
 public:
  static CommandQueue& instance();

  void add(std::function<void()> command);
  // Does all that is pending, in order. The first command that fails ends it, and the rest is dropped.
  void wait();
  bool is_idle();

  // Every kernel that ran, and how often.
  std::map<std::string, int64_t> dispatches();
  void count_dispatch(const std::string& kernel);

  RunOptions options;

 private:
  std::recursive_mutex mutex_;
  std::vector<std::function<void()>> pending_;
  std::map<std::string, int64_t> dispatches_;
};

// Libraries of kernels, as metal_host compiles them.
void load_kernels(const std::string& path);
// Of the library that was loaded last, where several have the name; null if none has. It lives as long as the process.
id<MTLComputePipelineState> find_pipeline(const std::string& name);
std::vector<std::string> kernel_names();

// As dispatch_sync, but the block may throw.
void run_on_queue(dispatch_queue_t queue, dispatch_block_t block);

} // namespace metal_host

@interface MetalHostComputeEncoder : NSObject <MTLComputeCommandEncoder> {
  struct MetalHostEncoderState* _state;
}
@end
