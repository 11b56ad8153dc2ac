#include "signals.h"

#include "scheduler.h"

#include <signal.h>
#include <ucontext.h>

#include <mutex>
#include <sstream>

namespace metal_host {

namespace {

constexpr size_t kSignalStackSize = 64 << 10;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[NSIG];

std::string describe(int signal, const siginfo_t& info) {
  if (signal == SIGFPE) {
    return "an integer division by zero, or one that overflows";
  }
  if (signal == SIGILL) {
    return "unreachable code is reached";
  }
  std::ostringstream text;
  text << "touches memory at " << info.si_addr << ", where nothing is (options(sanitize=True) says more)";
  return text.str();
}

void handle(int signal, siginfo_t* info, void* context) {
  auto* const worker = Worker::current();
  void* const scheduler = worker == nullptr ? nullptr : worker->fail_from_signal(describe(signal, *info));
  if (scheduler == nullptr) {
    // Not a kernel's: as if we had not been here.
    sigaction(signal, &previous[signal], nullptr);
    return;
  }
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RSP] = reinterpret_cast<greg_t>(scheduler);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&metal_host_resume);
}

} // namespace

void install_signal_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (const auto signal : kSignals) {
      sigaction(signal, &action, &previous[signal]);
    }
  });
}

SignalStack::SignalStack() {
  stack_t present{};
  sigaltstack(nullptr, &present);
  if (present.ss_flags & SS_DISABLE) {
    memory_ = std::make_unique<char[]>(kSignalStackSize);
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = kSignalStackSize;
    sigaltstack(&stack, nullptr);
  }
}

SignalStack::~SignalStack() {
  if (memory_) {
    stack_t stack{};
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, nullptr);
  }
}

} // namespace metal_host
