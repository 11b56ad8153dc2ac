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
#include <array>
#include <vector>

namespace at::native {

namespace {

using vec::Vectorized;

// Elements worth a thread of their own.
constexpr int64_t kGrainSize = 16384;
// Channels staged at once: enough that what is stored here is not loaded again right away.
constexpr int64_t kChannels = 256;

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

// The tokens each sequence had before; none where they are not counted.
std::vector<int64_t> token_counts(const CausalConv1dUpdateArgs& args) {
  std::vector<int64_t> counts(args.input.size(0));
  const Indices seqlens(args.cache_seqlens);
  for (const auto b : c10::irange(seqlens.defined() ? counts.size() : 0)) {
    counts[b] = seqlens.get(0, static_cast<int64_t>(b));
    TORCH_CHECK_INDEX(
        counts[b] >= 0,
        "causal_conv1d_update(): expected cache_seqlens to count tokens from 0 on, but got ", counts[b], " at ", b);
  }
  return counts;
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
    for (const auto c : c10::irange(channel, channel + channels)) {
      for (const auto j : c10::irange(kept)) {
        *state.at(c, j) = *state.at(c, j + time);
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

// plane[channel + c, time] as a row: where it lies if it may be read there (`whole`), else in scratch.
template <typename scalar_t, typename acc_t>
const acc_t* load_channels(
    const Plane<scalar_t>& from, int64_t channel, int64_t time, int64_t count, acc_t* scratch, bool whole) {
  const auto* data = from.at(channel, time);
  if (from.channel_stride == 1) {
    return widened(data, count, scratch, whole);
  }
  for (const auto c : c10::irange(count)) {
    scratch[c] = data[c * from.channel_stride];
  }
  return scratch;
}

// plane[channel + c, time] = row[c]
template <typename scalar_t, typename acc_t>
void store_channels(const Plane<scalar_t>& to, int64_t channel, int64_t time, int64_t count, const acc_t* row) {
  auto* data = to.at(channel, time);
  if (to.channel_stride == 1) {
    narrow(row, data, count);
    return;
  }
  for (const auto c : c10::irange(count)) {
    data[c * to.channel_stride] = static_cast<scalar_t>(row[c]);
  }
}

// Between [channels, kSize] densely and kSize rows of kChannels; loops that the compiler turns into
// shuffles, since kSize is a constant.
template <int kSize, typename acc_t>
void split(const acc_t* dense, int64_t count, acc_t* rows) {
  if constexpr (kSize == 4) { // where the compiler's own shuffles take twice as long
    using Vec = Vectorized<acc_t>;
    for (int64_t c = 0; c < count; c += Vec::size()) {
      const auto* quads = dense + c * 4;
      const auto [a02, a13] = vec::deinterleave2(Vec::loadu(quads), Vec::loadu(quads + Vec::size()));
      const auto [b02, b13] =
          vec::deinterleave2(Vec::loadu(quads + 2 * Vec::size()), Vec::loadu(quads + 3 * Vec::size()));
      const auto [row0, row2] = vec::deinterleave2(a02, b02);
      const auto [row1, row3] = vec::deinterleave2(a13, b13);
      row0.store(rows + c);
      row1.store(rows + kChannels + c);
      row2.store(rows + 2 * kChannels + c);
      row3.store(rows + 3 * kChannels + c);
    }
    return;
  }
  for (const auto c : c10::irange(count)) {
    for (int k = 0; k < kSize; ++k) {
      rows[k * kChannels + c] = dense[c * kSize + k];
    }
  }
}

template <int kSize, typename acc_t>
void join(const acc_t* const* from, int64_t count, acc_t* dense) {
  std::array<const acc_t*, kSize> rows;
  std::copy_n(from, kSize, rows.begin());
  for (const auto c : c10::irange(count)) {
    for (int k = 0; k < kSize; ++k) {
      dense[c * kSize + k] = rows[k][c];
    }
  }
}

// taps[k * kChannels + c] of `count` channels. `scratch` is of the same size.
template <int kWidth, typename scalar_t, typename acc_t>
void load_taps(
    const Parameter<scalar_t, acc_t>& weight,
    int64_t channel,
    int64_t count,
    int64_t width,
    acc_t* scratch,
    bool whole,
    acc_t* taps) {
  if constexpr (kWidth != 0) {
    if (const auto* dense = weight.dense(channel, count, width, scratch, whole)) {
      split<kWidth>(dense, count, taps);
      return;
    }
  }
  for (const auto k : c10::irange(width)) {
    for (const auto c : c10::irange(count)) {
      taps[k * kChannels + c] = weight.get(channel + c, k);
    }
  }
}

template <typename scalar_t, int kWidth>
void update(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  using acc_t = at::opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  const int64_t batch = args.input.size(0);
  const int64_t channels = args.input.size(1);
  const int64_t time = args.input.size(2);
  const int64_t width = kWidth ? kWidth : args.weight.size(1);
  constexpr int kState = std::max(kWidth - 1, 0);
  const auto state_row_of = state_rows(args);
  const auto tokens_before = token_counts(args);
  const bool ring = args.cache_seqlens.defined();
  const Parameter<scalar_t, acc_t> weight(args.weight), bias(args.bias);
  const auto blocks = at::divup(channels, kChannels);

  const auto grain = at::divup(kGrainSize, std::max<int64_t>(time * kChannels * width, 1));
  at::parallel_for(0, batch * blocks, grain, [&](int64_t begin, int64_t end) {
    // Rows of kChannels each, and where they are read: there, or in the tensor itself.
    std::vector<acc_t> window((width - 1 + time) * kChannels, acc_t(0));
    std::vector<const acc_t*> rows(width - 1 + time);
    std::vector<acc_t> taps(width * kChannels, acc_t(0)), dense(width * kChannels, acc_t(0));
    std::array<acc_t, kChannels> bias_row{}, out_row{};
    for (const auto i : c10::irange(begin, end)) {
      const auto b = i / blocks;
      const auto channel = i % blocks * kChannels;
      const auto count = std::min(kChannels, channels - channel);
      const bool whole = count == kChannels; // so a vector does not reach beyond the block
      const auto out = plane<scalar_t>(output, b);
      if (state_row_of[b] < 0) {
        out_row.fill(0);
        for (const auto t : c10::irange(time)) {
          store_channels(out, channel, t, count, out_row.data());
        }
        continue;
      }
      const auto input = plane<const scalar_t>(args.input, b);
      const auto state = plane<scalar_t>(args.state, state_row_of[b]);
      const StateRow state_row(args.state.size(2), tokens_before[b], ring);

      // The usual state: just the W-1 inputs before, densely.
      const bool dense_state = kWidth != 0 && !ring && args.state.size(2) == width - 1 && state.time_stride == 1 &&
          state.channel_stride == width - 1;
      const auto scratch = [&](int64_t row) { return window.data() + row * kChannels; };
      if (dense_state) {
        const auto* inputs = widened(state.at(channel, 0), count * (width - 1), dense.data(), whole);
        split<kState>(inputs, count, window.data());
      }
      for (const auto j : c10::irange(width - 1)) {
        rows[j] = scratch(j);
        if (dense_state) {
          continue;
        }
        if (const auto place = state_row.tap(width, j); place >= 0) {
          rows[j] = load_channels(state, channel, place, count, scratch(j), whole);
        } else {
          std::fill_n(scratch(j), kChannels, acc_t(0));
        }
      }
      for (const auto t : c10::irange(time)) {
        const auto j = width - 1 + t;
        rows[j] = load_channels(input, channel, t, count, scratch(j), whole);
      }
      load_taps<kWidth>(weight, channel, count, width, dense.data(), whole, taps.data());
      const auto* biases = bias.dense(channel, count, 1, bias_row.data(), whole);
      if (biases == nullptr) {
        for (const auto c : c10::irange(count)) {
          bias_row[c] = bias.get(channel + c);
        }
        biases = bias_row.data();
      }
      for (const auto t : c10::irange(time)) {
        for (int64_t c = 0; c < count; c += Vec::size()) {
          auto z = Vec::loadu(biases + c);
          for (const auto k : c10::irange(width)) {
            z = vec::fmadd(Vec::loadu(taps.data() + k * kChannels + c), Vec::loadu(rows[t + k] + c), z);
          }
          (args.silu ? silu(z) : z).store(out_row.data() + c);
        }
        store_channels(out, channel, t, count, out_row.data());
      }
      if (dense_state) {
        if constexpr (std::is_same_v<scalar_t, acc_t>) {
          join<kState>(rows.data() + time, count, state.at(channel, 0));
        } else {
          join<kState>(rows.data() + time, count, dense.data());
          narrow(dense.data(), state.at(channel, 0), count * (width - 1));
        }
      } else {
        state_row.push(state, input, channel, count, time);
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
