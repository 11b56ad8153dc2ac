// Columns: a few channels that one thread takes through time.
#pragma once

#include <ATen/native/cuda/CausalConv1dSequences.cuh>

namespace at::native {

namespace {

// Channels of a thread: 8 bytes.
template <typename scalar_t>
constexpr int kChannels = 8 / sizeof(scalar_t);

// Whether the channels of every thread lie next to each other, at a multiple of their size.
inline bool aligned_columns(const Tensor& tensor) {
  if (!tensor.defined()) {
    return true;
  }
  constexpr int64_t bytes = 8;
  const auto multiple = [&](int64_t dim) {
    return tensor.size(dim) == 1 || tensor.stride(dim) * tensor.element_size() % bytes == 0;
  };
  return tensor.size(1) * tensor.element_size() % bytes == 0 && tensor.stride(1) == 1 && multiple(0) && multiple(2) &&
      reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
}

// A thread's channels of one row of a tensor. If kAligned, as above; else read one by one, as many as there are.
template <typename scalar_t, bool kAligned>
struct Column {
  using element_t = std::remove_const_t<scalar_t>;
  static constexpr int kSize = kChannels<element_t>;
  using vector_t = Vector<element_t, kSize>;
  using word_t = typename Word<sizeof(element_t)>::type;

  scalar_t* data; // at a position
  int64_t channel;
  int64_t time;
  int size;

  __device__ Column(const View<scalar_t>& view, int64_t b, int64_t d, int64_t channels, int64_t begin)
      : data(view.at(b, d, begin)),
        channel(view.channel),
        time(view.time),
        size(kAligned ? kSize : min(channels - d, int64_t(kSize))) {}

  // The position that `data` is at; these two go on to the next.
  __device__ vector_t load_next() {
    vector_t values{};
    if constexpr (kAligned) {
      values = load_vector<element_t, kSize>(data);
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (c < size) {
          values.set_bits(c, __ldg(reinterpret_cast<const word_t*>(data + c * channel)));
        }
      }
    }
    data += time;
    return values;
  }

  __device__ void store_next(const vector_t& values) {
    if constexpr (kAligned) {
      store_vector(data, values);
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (c < size) {
          *reinterpret_cast<word_t*>(data + c * channel) = values.bits(c);
        }
      }
    }
    data += time;
  }

  // The same `steps` further on.
  __device__ Column at(int64_t steps) const {
    auto column = *this;
    column.data += steps * time;
    return column;
  }
};

// The parameters of a thread's channels; those of the last channel in place of what does not exist.
template <typename scalar_t, int W, bool kAligned>
struct ColumnParameters {
  using acc_t = at::opmath_type<scalar_t>;
  static constexpr int kSize = kChannels<scalar_t>;
  Values<acc_t, kSize * W> weight;
  Values<acc_t, kSize> bias;

  __device__ ColumnParameters(const Parameters<scalar_t>& parameters, int64_t d, int64_t channels) {
    if (kAligned && parameters.dense) {
      parameters.template load_dense<W>(d, weight, bias);
      return;
    }
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      Values<acc_t, W> taps;
      parameters.load(min(d + c, channels - 1), taps, bias[c]);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        weight[c * W + k] = taps[k];
      }
    }
  }

  __device__ acc_t tap(int c, int k) const {
    return weight[c * W + k];
  }
};

// The inputs that a thread's taps see, [tap][channel].
template <typename acc_t, int kSize, int W>
using Taps = Values<Values<acc_t, kSize>, W>;

template <typename acc_t, int kSize, int W, typename vector_t>
__device__ void push(Taps<acc_t, kSize, W>& taps, const vector_t& vector) {
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
#pragma unroll
    for (int k = 0; k < W - 1; ++k) {
      taps[k][c] = taps[k + 1][c];
    }
    taps[W - 1][c] = vector.widen(c);
  }
  settle(taps[W - 1]);
}

// What the taps see that precede position t: at first, taps[k] at t - W + k.
template <int W, typename Column>
__device__ auto preceding_taps(Column before, int64_t t) {
  constexpr int kSize = Column::kSize;
  Taps<at::opmath_type<typename Column::element_t>, kSize, W> taps;
#pragma unroll
  for (int k = 1; k < W; ++k) {
    typename Column::vector_t vector{};
    if (t + k >= W) {
      vector = before.load_next();
    } else {
      before = before.at(1);
    }
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      taps[k][c] = vector.widen(c);
    }
  }
  return taps;
}

// Of taps that end before t, those before the start of t's segment: the segment's initial state instead, or zeros.
// `params`: the parameters of either pass.
template <typename Params, typename acc_t, int kSize, int W>
__device__ void see_state(const Params& p, int64_t b, int64_t d, int64_t t, Taps<acc_t, kSize, W>& taps) {
  const auto segment = p.sequences.find(b, t);
#pragma unroll
  for (int k = 1; k < W; ++k) {
    const auto place = t + k - 1 - segment.start;
    if (place < W - 1) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        taps[k][c] = p.initial_state.data
            ? static_cast<acc_t>(load_element(p.initial_state.at(segment.state, min(d + c, p.channels - 1), place)))
            : acc_t(0);
      }
    }
  }
}

// The sums before SiLU.
template <typename acc_t, int kSize, int W, typename ColumnParameters>
__device__ Values<acc_t, kSize> sum_taps(const ColumnParameters& parameters, const Taps<acc_t, kSize, W>& taps) {
  Values<acc_t, kSize> sums;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    sums[c] = parameters.bias[c];
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sums[c] = multiply_add(parameters.tap(c, k), taps[k][c], sums[c]);
    }
  }
  return sums;
}

// Those taps that count, and zeros.
template <typename acc_t, int kSize, int W>
__device__ Taps<acc_t, kSize, W> mask_taps(unsigned mask, Taps<acc_t, kSize, W> taps) {
#pragma unroll
  for (int k = 0; k < W; ++k) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      taps[k][c] = mask >> k & 1 ? taps[k][c] : acc_t(0);
    }
  }
  return taps;
}

// How [B, D, T] is divided: into groups of channels, and these into stretches of time.
struct Stretches {
  int64_t steps; // of a stretch
  int64_t per_row;
  int64_t count; // of all channels, too
  Divisor row_divisor; // per_row
  Divisor group_divisor; // of channels

  Stretches(int64_t batch, int64_t groups, int64_t time, int64_t steps)
      : steps(steps),
        per_row(ceil_div(time, steps)),
        count(batch * per_row * groups),
        row_divisor(per_row, batch * per_row),
        group_divisor(groups, count) {}

  // Stretch i of all; `unit` counts the stretches of all rows, of any channels.
  __device__ void find(int64_t i, int64_t& unit, int64_t& b, int64_t& stretch, int64_t& group) const {
    group_divisor.divide(i, unit, group);
    row_divisor.divide(unit, b, stretch);
  }
};

} // namespace

} // namespace at::native
