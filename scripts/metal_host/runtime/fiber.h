// A thread of a kernel that can wait: a stack of its own, on the host thread that runs its group.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metal_host {

constexpr size_t kStackSize = 256 << 10;

// Saves where the caller is in *from, and goes on where `to` was saved.
extern "C" void metal_host_switch(void** from, void* to);
// The second half of that: where to go on with `to` in the stack pointer.
extern "C" void metal_host_resume();

class Stack {
 public:
  Stack();
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // What to pass to metal_host_switch() so that `function` starts on this stack. It must not return.
  void* prepare(void (*function)());

  bool holds(const char* address, size_t size) const {
    return address >= memory_ && address + size <= memory_ + kStackSize;
  }

 private:
  char* memory_;
  size_t color_; // stacks that begin at the same place of a page would share few cache sets
};

} // namespace metal_host
