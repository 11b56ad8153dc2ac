// The executor's interface: a dispatch of one kernel. C, so that Python and C++ call it alike.
#pragma once

#include "../library/abi.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// In which order the threads of a group take their turns. Code that is right gives the same in each.
enum metal_host_schedule : int32_t {
  // Every thread runs up to its next barrier or simdgroup operation, then the next thread: upwards or downwards.
  METAL_HOST_FORWARD,
  METAL_HOST_REVERSE,
  // A simdgroup runs alone up to its next barrier, then the next simdgroup: upwards or downwards.
  METAL_HOST_SIMDGROUP,
  METAL_HOST_SIMDGROUP_REVERSE,
};

// What is bound to a buffer index: memory from `data` on, of which a kernel may touch [begin, end).
struct metal_host_buffer {
  void* data;
  const char* begin;
  const char* end;
};

struct metal_host_dispatch {
  const struct metal_host_kernel* kernel;
  const struct metal_host_buffer* buffers; // by buffer index
  uint32_t buffer_count;
  const uint32_t* threadgroup_lengths; // in bytes, by threadgroup index
  uint32_t threadgroup_count;
  uint32_t grid[3]; // in threads
  uint32_t group[3];
  int32_t schedule;
  uint32_t host_threads;
  uint8_t keep_denormals; // else float denormals are zero, as PyTorch has Metal compiled
};

// 0, or 1 and what went wrong in `message`.
int metal_host_run(const struct metal_host_dispatch* dispatch, char* message, size_t message_size);

// The kernels of a library that dlopen() gave, as a list; and one by its name, or null.
const struct metal_host_kernel* metal_host_kernels(void* library);
const struct metal_host_kernel* metal_host_find(void* library, const char* name);

// How many threadgroups ran, threads that waited, and barriers, since the start.
struct metal_host_counters {
  uint64_t dispatches;
  uint64_t groups;
  uint64_t barriers;
  uint64_t simd_operations;
};
void metal_host_read_counters(struct metal_host_counters* counters);

#ifdef __cplusplus
}
#endif
