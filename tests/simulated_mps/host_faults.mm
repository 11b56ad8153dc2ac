// Mistakes in memory and arithmetic of the host, which sanitizers report.
#include <torch/library.h>

#include <limits>
#include <vector>

namespace {

int64_t read_beyond(int64_t index) {
  const std::vector<int64_t> values(4, 7);
  return values.data()[index];
}

int64_t add_to_largest(int64_t value) {
  return std::numeric_limits<int64_t>::max() + value;
}

} // namespace

TORCH_LIBRARY(host_faults, m) {
  m.def("read_beyond(int index) -> int", &read_beyond);
  m.def("add_to_largest(int value) -> int", &add_to_largest);
}
