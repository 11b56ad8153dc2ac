// What a compiled kernel library and the executor share. Plain C types: both sides include it, and are
// compiled by different compilers.
#pragma once

struct metal_host_thread_range;

enum metal_host_argument_kind : unsigned {
  METAL_HOST_BUFFER,
  METAL_HOST_THREADGROUP_MEMORY,
  METAL_HOST_POSITION,
};

struct metal_host_argument {
  enum metal_host_argument_kind kind;
  unsigned index; // of [[buffer(index)]] or [[threadgroup(index)]]
  unsigned size; // of what it points or refers to; 0 for void
  unsigned alignment;
  unsigned char is_reference;
  unsigned char is_constant; // else device, or threadgroup
};

// A kernel by its host name. `run` takes the threads of a range one after the other.
struct metal_host_kernel {
  const char* name;
  void (*run)(struct metal_host_thread_range*);
  const struct metal_host_argument* arguments;
  unsigned argument_count;
  unsigned max_total_threads; // per threadgroup
  const struct metal_host_kernel* next;
};

// The threadgroup whose threads run.
struct metal_host_group {
  unsigned position[3];
  unsigned threads[3]; // of this group: fewer than usual at the edge of a grid that does not divide
  unsigned dispatch_threads[3]; // of a whole group
  unsigned groups[3];
  unsigned grid[3]; // in threads
  void* const* buffers;
  void* const* threadgroup_memory;
};

// The threads [next, end) of a group, or, downwards, (end, next]. It moves on before a thread starts.
struct metal_host_thread_range {
  const struct metal_host_group* group;
  unsigned next;
  unsigned end;
  unsigned step; // 1, or -1 modulo 2^32
};

// The values that the lanes of a simdgroup brought to an operation.
struct metal_host_lanes {
  unsigned active; // a bit for each lane that is there
  unsigned lane; // the caller's
  const char (*values)[16];
};

// Threads meet in a call by its address, so an optimizer may not make two calls of one.
#ifdef __clang__
#define METAL_HOST_RENDEZVOUS __attribute__((noduplicate, convergent))
#else
#define METAL_HOST_RENDEZVOUS
#endif

#ifdef __cplusplus
extern "C" {
#endif

METAL_HOST_RENDEZVOUS void metal_host_barrier(unsigned mem_flags);
METAL_HOST_RENDEZVOUS struct metal_host_lanes metal_host_exchange(const void* value, unsigned size, unsigned operation);
void* metal_host_threadgroup_variable(const void* key, unsigned long size, unsigned long alignment);

#ifdef __cplusplus
}
#endif
