// causal_conv1d_update on the CPU: a few new positions for many channels, so the vectors run along
// the channels. Each lane takes the same operations in the same order as a position in
// CausalConv1dKernel.cpp, and so gives the same bits.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>
#include <ATen/native/cpu/CausalConv1dUtils.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <vector>

namespace at::native {

namespace {

using vec::Vectorized;

// Elements worth a thread of their own.
constexpr int64_t kGrainSize = 16384;

// The row of the state for each row of the input; negative for padding.
std::vector<int64_t> state_rows(const CausalConv1dUpdateArgs& args) {
  const int64_t batch = args.input.size(0);
  const int64_t states = args.state.size(0);
  std::vector<int64_t> rows(batch);
  if (!args.state_indices.defined()) {
    for (const auto b : c10::irange(batch)) {
      rows[b] = b;
    }
    return rows;
  }
  const Indices indices(args.state_indices);
  for (const auto b : c10::irange(batch)) {
    rows[b] = indices.get(0, b);
    TORCH_CHECK_INDEX(
        rows[b] < states,
        "causal_conv1d_update(): expected state_indices below S = ", states, ", or negative for padding, but got ",
        rows[b], " at ", b);
  }
  auto sorted = rows;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(
      sorted.begin(), sorted.end(), [](int64_t a, int64_t b) { return a >= 0 && a == b; });
  TORCH_CHECK_VALUE(
      twice == sorted.end(),
      "causal_conv1d_update(): expected each row of state once in state_indices, but got ", *twice, " twice");
  return rows;
}

// The places of one state row that hold the W-1 inputs before the call, oldest first (negative:
// before the first token, so 0), and where token t of the call goes.
class StateRow {
 public:
  StateRow(int64_t size, int64_t tokens_before, bool ring)
      : size_(size), before_(tokens_before), ring_(ring) {}

  int64_t tap(int64_t width, int64_t j) const {
    if (!ring_) {
      return size_ - (width - 1) + j;
    }
    const auto token = before_ - (width - 1) + j;
    return token < 0 ? -1 : token % size_;
  }

  // Takes the call's inputs in.
  template <typename scalar_t>
  void push(scalar_t* state, int64_t state_stride, const scalar_t* input, int64_t input_stride, int64_t time) const {
    if (ring_) {
      for (const auto t : c10::irange(std::max<int64_t>(time - size_, 0), time)) {
        state[(before_ + t) % size_ * state_stride] = input[t * input_stride];
      }
      return;
    }
    for (const auto j : c10::irange(size_)) {
      const auto from = j + time;
      state[j * state_stride] = from < size_ ? state[from * state_stride] : input[(from - size_) * input_stride];
    }
  }

 private:
  int64_t size_;
  int64_t before_;
  bool ring_;
};

template <typename scalar_t, int kWidth>
void update(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  using acc_t = at::opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  constexpr int64_t kLanes = Vec::size();
  const int64_t batch = args.input.size(0);
  const int64_t channels = args.input.size(1);
  const int64_t time = args.input.size(2);
  const int64_t width = kWidth ? kWidth : args.weight.size(1);
  const auto rows = state_rows(args);
  const Indices seqlens(args.cache_seqlens);
  if (seqlens.defined()) {
    for (const auto b : c10::irange(batch)) {
      TORCH_CHECK_INDEX(
          seqlens.get(0, b) >= 0,
          "causal_conv1d_update(): expected cache_seqlens to count tokens from 0 on, but got ", seqlens.get(0, b),
          " at ", b);
    }
  }
  const Parameter<scalar_t, acc_t> weight(args.weight), bias(args.bias);
  const auto groups = at::divup(channels, kLanes);

  const auto grain = at::divup(kGrainSize, std::max<int64_t>(time * kLanes * width, 1));
  at::parallel_for(0, batch * groups, grain, [&](int64_t begin, int64_t end) {
    std::vector<acc_t> window((width - 1 + time) * kLanes, acc_t(0)); // [W-1 + T, lanes]
    std::vector<acc_t> taps(width * kLanes, acc_t(0)); // [W, lanes]
    acc_t lanes[kLanes] = {};
    for (const auto i : c10::irange(begin, end)) {
      const auto b = i / groups;
      const auto channel = i % groups * kLanes;
      const auto count = std::min(kLanes, channels - channel);
      const auto out = plane<scalar_t>(output, b);
      if (rows[b] < 0) {
        for (const auto c : c10::irange(count)) {
          for (const auto t : c10::irange(time)) {
            *out.at(channel + c, t) = 0;
          }
        }
        continue;
      }
      const auto input = plane<const scalar_t>(args.input, b);
      const auto state = plane<scalar_t>(args.state, rows[b]);
      const StateRow state_row(args.state.size(2), seqlens.defined() ? seqlens.get(0, b) : 0, seqlens.defined());

      for (const auto j : c10::irange(width - 1)) {
        const auto place = state_row.tap(width, j);
        for (const auto c : c10::irange(count)) {
          window[j * kLanes + c] = place < 0 ? acc_t(0) : static_cast<acc_t>(*state.at(channel + c, place));
        }
      }
      for (const auto t : c10::irange(time)) {
        for (const auto c : c10::irange(count)) {
          window[(width - 1 + t) * kLanes + c] = *input.at(channel + c, t);
        }
      }
      for (const auto c : c10::irange(count)) {
        for (const auto k : c10::irange(width)) {
          taps[k * kLanes + c] = weight.get(channel + c, k);
        }
        lanes[c] = bias.get(channel + c);
      }
      const auto bias_lanes = Vec::loadu(lanes);
      for (const auto t : c10::irange(time)) {
        auto z = bias_lanes;
        for (const auto k : c10::irange(width)) {
          z = vec::fmadd(Vec::loadu(taps.data() + k * kLanes), Vec::loadu(window.data() + (t + k) * kLanes), z);
        }
        (args.silu ? silu(z) : z).store(lanes);
        for (const auto c : c10::irange(count)) {
          *out.at(channel + c, t) = static_cast<scalar_t>(lanes[c]);
        }
      }
      for (const auto c : c10::irange(count)) {
        state_row.push(
            state.at(channel + c, 0), state.time_stride, input.at(channel + c, 0), input.time_stride, time);
      }
    }
  });
}

template <typename scalar_t>
void update(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  switch (args.weight.size(1)) {
    case 2:
      return update<scalar_t, 2>(args, output);
    case 3:
      return update<scalar_t, 3>(args, output);
    case 4:
      return update<scalar_t, 4>(args, output);
    default:
      return update<scalar_t, 0>(args, output);
  }
}

void causal_conv1d_update_kernel(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_update_cpu", [&] {
    update<scalar_t>(args, output);
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_update_stub, &causal_conv1d_update_kernel)

} // namespace at::native
