#include "races.h"

#include <initializer_list>

namespace metal_host {

namespace {

constexpr uint32_t kSimdgroup = 32;

// Whether `before` happened before `now` for everyone: a barrier between, or, within a simdgroup, an operation.
bool is_ordered(const Moment& before, const Moment& now) {
  if (before.barriers != now.barriers || before.thread == now.thread) {
    return true;
  }
  return before.thread / kSimdgroup == now.thread / kSimdgroup && before.simd_operations != now.simd_operations;
}

} // namespace

std::optional<uint32_t> RaceDetector::access(size_t offset, size_t size, bool write, const Moment& now) {
  std::optional<uint32_t> other;
  for (size_t i = offset; i < offset + size; ++i) {
    auto& byte = bytes_[i];
    if (!is_ordered(byte.written, now)) {
      other = byte.written.thread;
    }
    if (write) {
      for (const auto& read : {byte.read, byte.read_by_lane, byte.read_by_simdgroup}) {
        if (!is_ordered(read, now)) {
          other = read.thread;
        }
      }
      byte.written = now;
    } else {
      if (byte.read.thread / kSimdgroup != now.thread / kSimdgroup) {
        byte.read_by_simdgroup = byte.read;
      } else if (byte.read.thread != now.thread) {
        byte.read_by_lane = byte.read;
      }
      byte.read = now;
    }
  }
  return other;
}

} // namespace metal_host
