// Who touched which byte of threadgroup memory last, and so, which accesses nothing orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace metal_host {

// One thread at one time. Times only grow, over the groups too.
struct Moment {
  uint32_t thread;
  uint32_t barriers; // of the group that order threadgroup memory
  uint32_t simd_operations; // of the thread's simdgroup
};

class RaceDetector {
 public:
  explicit RaceDetector(size_t size) : bytes_(size) {}

  // Notes an access. If another one of the same bytes, one of the two a write, is not ordered before it: whose.
  std::optional<uint32_t> access(size_t offset, size_t size, bool write, const Moment& now);

 private:
  struct Byte {
    Moment written{};
    Moment read{};
    // The last before that one, by another lane of its simdgroup and from another simdgroup; earlier ones are
    // forgotten.
    Moment read_by_lane{};
    Moment read_by_simdgroup{};
  };

  std::vector<Byte> bytes_;
};

} // namespace metal_host
