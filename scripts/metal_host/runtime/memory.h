// Which memory a kernel may touch, and a threadgroup's own.
#pragma once

#include "runtime.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace metal_host {

constexpr size_t kThreadgroupMemory = 32 << 10; // as on every Apple GPU
constexpr size_t kThreadgroupCapacity = 4 * kThreadgroupMemory; // with the gaps between

struct Region {
  const char* begin;
  const char* end;
  bool writable;
  std::string name;

  bool holds(const char* address, size_t size) const {
    return address >= begin && address < end && size <= static_cast<size_t>(end - address);
  }
};

// The threadgroup memory of one host thread: what the host bound, then the kernel's variables as they
// are met. Filled with a pattern for each group, so that nothing is left over from the one before.
class ThreadgroupMemory {
 public:
  ThreadgroupMemory();
  ~ThreadgroupMemory();
  ThreadgroupMemory(const ThreadgroupMemory&) = delete;
  ThreadgroupMemory& operator=(const ThreadgroupMemory&) = delete;

  // Begins a group; false if what the host bound is too much.
  bool reset(const uint32_t* lengths, uint32_t count);
  // The variable of that key, the same for all threads of a group; null if there is no room left.
  void* variable(const void* key, size_t size, size_t alignment);

  void* const* arguments() const {
    return arguments_.data();
  }
  const std::vector<Region>& regions() const {
    return regions_;
  }
  size_t offset_of(const char* address) const {
    return static_cast<size_t>(address - memory_);
  }

 private:
  char* allocate(size_t size, size_t alignment, std::string name);

  struct Variable {
    const void* key;
    char* memory;
  };

  char* memory_;
  size_t reserved_ = 0; // with the gaps between
  size_t used_ = 0;
  std::vector<void*> arguments_;
  std::vector<Variable> variables_;
  std::vector<Region> regions_;
};

// The read-only and writable segments of the shared objects that are kernel libraries.
const std::vector<Region>& image_regions();
void add_image(const void* address);

} // namespace metal_host
