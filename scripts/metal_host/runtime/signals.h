// What a kernel does that the processor refuses ends the dispatch, not the process.
#pragma once

#include <memory>

namespace metal_host {

void install_signal_handlers();

// A stack for the handlers of this host thread: a kernel's own may be what has overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

} // namespace metal_host
