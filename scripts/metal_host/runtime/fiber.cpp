#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

#if !defined(__x86_64__)
#error "The Metal executor switches stacks in x86-64 assembly, and has none for this machine"
#endif

// The registers that a called function must keep (System V ABI). The floating-point control words are the
// same in all threads of a dispatch.
asm(R"(
.text
.globl metal_host_switch
.type metal_host_switch, @function
metal_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
.globl metal_host_resume
metal_host_resume:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size metal_host_switch, .-metal_host_switch
)");

namespace metal_host {

namespace {

constexpr int kSavedRegisters = 6;
std::atomic<size_t> next_color{0};

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

} // namespace

Stack::Stack() : color_(next_color++ % 32 * 128) {
  // A page below that faults: a stack that overflows does not go on in another's memory.
  const auto guard = page_size();
  auto* memory = mmap(
      nullptr, kStackSize + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  mprotect(memory, guard, PROT_NONE);
  memory_ = static_cast<char*>(memory) + guard;
}

Stack::~Stack() {
  munmap(memory_ - page_size(), kStackSize + page_size());
}

void* Stack::prepare(void (*function)()) {
  auto** top = reinterpret_cast<void**>(memory_ + kStackSize - color_);
  *--top = nullptr; // where `function` would return to; it also aligns the stack
  *--top = reinterpret_cast<void*>(function);
  for (int i = 0; i < kSavedRegisters; ++i) {
    *--top = nullptr;
  }
  return top;
}

} // namespace metal_host
