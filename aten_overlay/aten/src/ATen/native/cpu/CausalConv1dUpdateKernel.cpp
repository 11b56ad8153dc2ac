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

  // Takes the call's inputs in, for `channels` neighbouring channels.
  template <typename scalar_t>
  void push(const Plane<scalar_t>& state, const Plane<const scalar_t>& input, int64_t channel, int64_t channels, int64_t time)
      const {
    if (ring_) {
      for (const auto t : c10::irange(std::max<int64_t>(time - size_, 0), time)) {
        const auto place = (before_ + t) % size_;
        for (const auto c : c10::irange(channel, channel + channels)) {
          *state.at(c, place) = *input.at(c, t);
        }
      }
      return;
    }
    const auto kept = std::max<int64_t>(size_ - time, 0);
    if (state.time_stride == 1 && state.channel_stride == size_ && kept > 0) {
      // One move for all channels: what it puts into the new places is overwritten below.
      auto* data = state.at(channel, 0);
      std::memmove(data, data + time, (channels * size_ - time) * sizeof(scalar_t));
    } else {
      for (const auto c : c10::irange(channel, channel + channels)) {
        for (const auto j : c10::irange(kept)) {
          *state.at(c, j) = *state.at(c, j + time);
        }
      }
    }
    for (const auto j : c10::irange(kept, size_)) {
      for (const auto c : c10::irange(channel, channel + channels)) {
        *state.at(c, j) = *input.at(c, j + time - size_);
      }
    }
  }

 private:
  int64_t size_;
  int64_t before_;
  bool ring_;
};

// lanes[c] = plane[channel + c, time]
template <typename scalar_t, typename acc_t>
void load_lanes(const Plane<scalar_t>& from, int64_t channel, int64_t time, int64_t count, acc_t* lanes) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const auto* data = from.at(channel, time);
  if (from.channel_stride == 1) {
    widen(data, lanes, count);
  } else if (count == kLanes) {
    for (int c = 0; c < kLanes; ++c) { // unrolled
      lanes[c] = data[c * from.channel_stride];
    }
  } else {
    for (const auto c : c10::irange(count)) {
      lanes[c] = data[c * from.channel_stride];
    }
  }
}

// plane[channel + c, time] = lanes[c]
template <typename scalar_t, typename acc_t>
void store_lanes(const Plane<scalar_t>& to, int64_t channel, int64_t time, int64_t count, const acc_t* lanes) {
  auto* data = to.at(channel, time);
  if (to.channel_stride == 1) {
    narrow(lanes, data, count);
    return;
  }
  for (const auto c : c10::irange(count)) {
    data[c * to.channel_stride] = static_cast<scalar_t>(lanes[c]);
  }
}

// taps[k, lane] of `count` channels. `dense` is scratch of the same size.
template <int kWidth, typename scalar_t, typename acc_t>
void load_taps(
    const Parameter<scalar_t, acc_t>& weight, int64_t channel, int64_t count, int64_t width, acc_t* dense, acc_t* taps) {
  using Vec = Vectorized<acc_t>;
  constexpr int64_t kLanes = Vec::size();
  if (count < kLanes || !weight.load_dense(channel, kLanes, width, dense)) {
    for (const auto c : c10::irange(count)) {
      for (const auto k : c10::irange(width)) {
        taps[k * kLanes + c] = weight.get(channel + c, k);
      }
    }
    return;
  }
  const auto row = [&](int64_t k) { return Vec::loadu(dense + k * kLanes); };
  if constexpr (kWidth == 4) { // the common width: transposed in registers
    const auto [even0, odd0] = vec::deinterleave2(row(0), row(1));
    const auto [even1, odd1] = vec::deinterleave2(row(2), row(3));
    const auto [tap0, tap2] = vec::deinterleave2(even0, even1);
    const auto [tap1, tap3] = vec::deinterleave2(odd0, odd1);
    tap0.store(taps);
    tap1.store(taps + kLanes);
    tap2.store(taps + 2 * kLanes);
    tap3.store(taps + 3 * kLanes);
  } else {
    for (int c = 0; c < kLanes; ++c) {
      for (const auto k : c10::irange(width)) {
        taps[k * kLanes + c] = dense[c * width + k];
      }
    }
  }
}

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
    std::vector<acc_t> taps(width * kLanes, acc_t(0)), dense(width * kLanes);
    acc_t lanes[kLanes] = {};
    for (const auto i : c10::irange(begin, end)) {
      const auto b = i / groups;
      const auto channel = i % groups * kLanes;
      const auto count = std::min(kLanes, channels - channel);
      const auto out = plane<scalar_t>(output, b);
      if (rows[b] < 0) {
        const acc_t zeros[kLanes] = {};
        for (const auto t : c10::irange(time)) {
          store_lanes(out, channel, t, count, zeros);
        }
        continue;
      }
      const auto input = plane<const scalar_t>(args.input, b);
      const auto state = plane<scalar_t>(args.state, rows[b]);
      const StateRow state_row(args.state.size(2), seqlens.defined() ? seqlens.get(0, b) : 0, seqlens.defined());

      for (const auto j : c10::irange(width - 1)) {
        const auto place = state_row.tap(width, j);
        if (place < 0) {
          std::fill_n(window.data() + j * kLanes, kLanes, acc_t(0));
        } else {
          load_lanes(state, channel, place, count, window.data() + j * kLanes);
        }
      }
      for (const auto t : c10::irange(time)) {
        load_lanes(input, channel, t, count, window.data() + (width - 1 + t) * kLanes);
      }
      load_taps<kWidth>(weight, channel, count, width, dense.data(), taps.data());
      if (!bias.load_dense(channel, count, 1, lanes)) {
        for (const auto c : c10::irange(count)) {
          lanes[c] = bias.get(channel + c);
        }
      }
      const auto bias_lanes = Vec::loadu(lanes);
      for (const auto t : c10::irange(time)) {
        auto z = bias_lanes;
        for (const auto k : c10::irange(width)) {
          z = vec::fmadd(Vec::loadu(taps.data() + k * kLanes), Vec::loadu(window.data() + (t + k) * kLanes), z);
        }
        (args.silu ? silu(z) : z).store(lanes);
        store_lanes(out, channel, t, count, lanes);
      }
      state_row.push(state, input, channel, count, time);
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
