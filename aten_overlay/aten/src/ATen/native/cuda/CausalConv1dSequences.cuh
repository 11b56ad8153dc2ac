// How seq_idx and cu_seqlens divide the rows of causal_conv1d, and what follows for its taps and states.
#pragma once

#include <ATen/native/cuda/CausalConv1dUtils.cuh>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

namespace at::native {

namespace {

// Positions of a bit in each word of TapMasks::straight.
constexpr int64_t kMaskTile = 256;

// A stretch of one row of the input that has a state of its own.
struct Segment {
  int64_t state = 0; // row of the states
  int64_t start = 0;
  int64_t end = 0;
};

// How a call's rows are divided. Values out of range never lead out of bounds: the segments of
// cu_seqlens are clamped to [0, T], and what no segment covers belongs to its neighbour.
struct Sequences {
  Indices seq_idx;
  Indices cu_seqlens;
  const int64_t* last; // with seq_idx: the last position of each row that is not padding
  int64_t time; // T
  int64_t count; // N

  Sequences(const CausalConv1dArgs& args, const Tensor& last)
      : seq_idx(args.seq_idx),
        cu_seqlens(args.cu_seqlens),
        last(last.defined() ? last.const_data_ptr<int64_t>() : nullptr),
        time(args.input.size(2)),
        count(args.cu_seqlens.defined() ? args.cu_seqlens.size(0) - 1 : args.input.size(0)) {}

  __device__ int64_t bound(int64_t n) const {
    const auto value = cu_seqlens.at(0, n);
    return value < 0 ? 0 : value > time ? time : value;
  }

  // Segment n as it is (possibly empty).
  __device__ Segment segment(int64_t n) const {
    if (!cu_seqlens.data) {
      return {n, 0, time};
    }
    const auto start = bound(n);
    const auto end = bound(n + 1);
    return {n, start, end < start ? start : end};
  }

  // The segment of row b that position t is in.
  __device__ Segment find(int64_t b, int64_t t) const {
    if (!cu_seqlens.data) {
      return {b, 0, time};
    }
    int64_t low = 0, high = count; // bound(low) <= t, or low is 0; bound(high) > t, or high is N
    while (high - low > 1) {
      const auto middle = (low + high) / 2;
      (bound(middle) <= t ? low : high) = middle;
    }
    return {low, low == 0 ? 0 : bound(low), count == 0 ? time : bound(low + 1)};
  }

  // Moves on to the segment of a later position.
  __device__ void advance(Segment& segment, int64_t t) const {
    while (t >= segment.end && segment.state + 1 < count) {
      ++segment.state;
      segment.start = segment.end;
      segment.end = bound(segment.state + 1);
    }
  }

  // Whether output t sees the input at s <= t, which may lie before the start (in the state).
  __device__ bool counts(int64_t b, int64_t t, int64_t s) const {
    if (!seq_idx.data) {
      return true;
    }
    const auto index = seq_idx.at(b, t);
    return index >= 0 && (s == t || seq_idx.at(b, s < 0 ? 0 : s) == index);
  }

  // The position that place j of a segment's final state holds; below 0 it is place
  // W-1 + position of the initial state. False if it holds 0.
  __device__ bool final_source(int64_t b, const Segment& segment, int64_t width, int64_t j, int64_t& position) const {
    const auto size = segment.end - segment.start;
    const auto end = last ? last[b] : size - 1;
    position = end - (width - 2) + j;
    if (!seq_idx.data || size == 0) {
      return true;
    }
    return end >= 0 && seq_idx.at(b, position < 0 ? 0 : position) == seq_idx.at(b, end);
  }

  // The place of a final state that holds position s, or false.
  __device__ bool final_place(int64_t b, int64_t s, int64_t width, int64_t& state, int64_t& j) const {
    const auto segment = find(b, s);
    state = segment.state;
    const auto end = last ? last[b] : segment.end - segment.start - 1;
    j = s - segment.start - (end - (width - 2));
    return j >= 0 && j < width - 1 && count > 0 &&
        (!seq_idx.data || seq_idx.at(b, s) == seq_idx.at(b, end));
  }
};

// One channel of one row of the input, read through its states and masks, an element at a time:
// for what is rare, and for filters of any width.
template <typename scalar_t>
struct Source {
  using acc_t = at::opmath_type<scalar_t>;
  View<const scalar_t> input;
  View<const scalar_t> state;

  // The input at s as output t sees it.
  __device__ acc_t tap(
      const Sequences& sequences, const Segment& segment, int64_t b, int64_t d, int64_t width, int64_t t, int64_t s)
      const {
    if (!sequences.counts(b, t, s)) {
      return 0;
    }
    if (s >= segment.start) {
      return static_cast<acc_t>(*input.at(b, d, s));
    }
    return state.data ? static_cast<acc_t>(*state.at(segment.state, d, width - 1 + s - segment.start)) : acc_t(0);
  }

  __device__ acc_t preactivation(
      const Sequences& sequences,
      const Segment& segment,
      const Parameters<scalar_t>& parameters,
      int64_t b,
      int64_t d,
      int64_t width,
      int64_t t) const {
    auto z = parameters.offset(d);
    for (int64_t k = 0; k < width; ++k) {
      z = multiply_add(
          parameters.tap(d, k), tap(sequences, segment, b, d, width, t, t + k - (width - 1)), z);
    }
    return z;
  }
};

// A byte for each position: bit k says whether tap k of the output there is an input of its own
// sequence. Found once for all channels; positions beyond the row's end have none. The kernels that read them may begin
// before they are found: so the loads are plain ones, which stay behind wait_for_previous().
struct TapMasks {
  const uint8_t* data = nullptr; // null where rows are not divided
  int64_t pitch = 0; // of a row, in bytes
  const unsigned* straight = nullptr; // a bit for every 8 positions: whether all taps of those in the row count

  // The masks of kSize positions from t on, which is a multiple of kSize.
  template <int kSize>
  __device__ Vector<uint8_t, kSize> load(int64_t b, int64_t t) const {
    using vector_t = Vector<uint8_t, kSize>;
    const auto* from = data + b * pitch + t;
    if (t >= pitch) {
      return {};
    }
    if constexpr (kSize < alignof(vector_t)) {
      static_assert(kSize == 1);
      return {*from};
    } else {
      return *reinterpret_cast<const vector_t*>(from);
    }
  }

  __device__ unsigned load(int64_t b, int64_t t) const {
    return data[b * pitch + t];
  }

  // A bit for every 8 positions from t / 8 * 8 on: whether they are straight; all beyond the end.
  __device__ unsigned straight_bits(int64_t b, int64_t t) const {
    const auto* word = straight + (b * pitch + t) / kMaskTile;
    const auto next = t / kMaskTile * kMaskTile + kMaskTile < pitch ? word[1] : kEveryLane;
    return __funnelshift_r(*word, next, static_cast<unsigned>(t % kMaskTile / 8));
  }

  // Which lanes' vectors of kVec positions are straight in a span of kLanes of them; all beyond the end.
  template <int kVec>
  __device__ unsigned straight_lanes(int64_t b, int64_t span) const {
    static_assert(kVec == 4 || kVec == 8);
    constexpr int kTileSpans = kMaskTile / (kVec * kLanes);
    // All three fit into 32 bits, as masks take 256 bytes a tile: one multiplication.
    const int tile = static_cast<int>(span / kTileSpans), tiles = static_cast<int>(pitch / kMaskTile);
    if (tile >= tiles) {
      return kEveryLane;
    }
    auto word = straight[static_cast<int64_t>(static_cast<int>(b)) * tiles + tile];
    if constexpr (kVec == 4) { // a bit for two lanes
      word = span % kTileSpans == 0 ? word & 0xffff : word >> 16;
      word = (word | word << 8) & 0x00ff00ff;
      word = (word | word << 4) & 0x0f0f0f0f;
      word = (word | word << 2) & 0x33333333;
      word = (word | word << 1) & 0x55555555;
      word |= word << 1;
    }
    return word;
  }
};

// The mask of a position of which all taps count, and those of several.
template <int W>
constexpr unsigned kEveryTap = (1u << W) - 1;

template <int W, int kSize>
__device__ Vector<uint8_t, kSize> every_mask() {
  Vector<uint8_t, kSize> masks;
#pragma unroll
  for (int i = 0; i < masks.kWords; ++i) {
    masks.words[i] = (kSize < 4 ? 1u : 0x01010101u) * kEveryTap<W>;
  }
  return masks;
}

// Whether all taps of all the positions count.
template <int W, int kSize>
__device__ bool every_tap(const Vector<uint8_t, kSize>& masks) {
  bool every = true;
#pragma unroll
  for (int i = 0; i < masks.kWords; ++i) {
    every = every && masks.words[i] == every_mask<W, kSize>().words[i];
  }
  return every;
}

// Whether a segment of cu_seqlens begins at a position with this mask.
template <int W>
__device__ bool begins_segment(unsigned mask) {
  return W > 1 && !(mask >> (W > 1 ? W - 2 : 0) & 1);
}

// A position a thread, a word of `straight` a block.
__global__ void __launch_bounds__(kMaskTile)
find_tap_masks(const Sequences sequences, int64_t width, int64_t pitch, uint8_t* masks, unsigned* straight) {
  __shared__ unsigned bits[kMaskTile / kLanes];
  let_next_begin();
  const auto i = static_cast<int64_t>(blockIdx.x) * kMaskTile + threadIdx.x;
  const auto b = i / pitch, t = i % pitch;
  unsigned mask = 0;
  if (t < sequences.time) {
    const auto segment = sequences.find(b, t);
#pragma unroll 4
    for (int k = 0; k < width; ++k) {
      const auto s = t - (width - 1) + k;
      const bool own = sequences.seq_idx.data ? sequences.counts(b, t, s) : s >= segment.start;
      mask |= own ? 1u << k : 0u;
    }
  }
  masks[i] = mask;
  const auto every = __ballot_sync(kEveryLane, t >= sequences.time || mask == (1u << width) - 1);
  if (threadIdx.x % kLanes == 0) {
    unsigned four = 0;
    for (int j = 0; j < 4; ++j) {
      four |= (every >> 8 * j & 0xff) == 0xff ? 1u << j : 0u;
    }
    bits[threadIdx.x / kLanes] = four;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned word = 0;
    for (int j = 0; j < kMaskTile / kLanes; ++j) {
      word |= bits[j] << 4 * j;
    }
    straight[blockIdx.x] = word;
  }
}

// The last position of each row of seq_idx that is not padding, or -1.
__global__ void __launch_bounds__(kThreads) find_last_positions(const Indices seq_idx, int64_t time, int64_t* last) {
  __shared__ int64_t found[kThreads];
  const auto b = blockIdx.x;
  for (auto end = time; end > 0; end -= kThreads) {
    const auto t = end - 1 - threadIdx.x;
    const bool valid = t >= 0 && seq_idx.at(b, t) >= 0;
    if (__syncthreads_or(valid)) {
      found[threadIdx.x] = valid ? t : -1;
      __syncthreads();
      if (threadIdx.x == 0) {
        int i = 0;
        while (found[i] < 0) {
          ++i;
        }
        last[b] = found[i];
      }
      return;
    }
  }
  if (threadIdx.x == 0) {
    last[b] = -1;
  }
}

// The same as a tensor [B], if a final state or its gradient asks for it.
inline Tensor last_positions(const CausalConv1dArgs& args, const Tensor& final_state) {
  const auto batch = args.input.size(0);
  if (!args.seq_idx.defined() || !final_state.defined() || batch == 0) {
    return {};
  }
  auto last = at::empty({batch}, args.seq_idx.options().dtype(kLong));
  find_last_positions<<<batch, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      Indices(args.seq_idx), args.input.size(2), last.mutable_data_ptr<int64_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return last;
}

// The tap masks of a divided call as a tensor, else an undefined one: [B, pitch] bytes, and the words of `straight`.
inline Tensor tap_masks(const CausalConv1dArgs& args) {
  if ((!args.seq_idx.defined() && !args.cu_seqlens.defined()) || args.weight.size(1) > kMaxWidth ||
      args.input.scalar_type() == kDouble) {
    return {};
  }
  const auto batch = args.input.size(0), tiles = ceil_div(args.input.size(2), kMaskTile);
  auto masks = at::empty(
      {batch * tiles, kMaskTile + static_cast<int64_t>(sizeof(unsigned))}, args.input.options().dtype(kByte));
  if (masks.numel() > 0) {
    auto* data = masks.mutable_data_ptr<uint8_t>();
    find_tap_masks<<<batch * tiles, kMaskTile, 0, c10::cuda::getCurrentCUDAStream()>>>(
        Sequences(args, {}),
        args.weight.size(1),
        tiles * kMaskTile,
        data,
        reinterpret_cast<unsigned*>(data + batch * tiles * kMaskTile));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return masks;
}

// Whether a kernel was launched that finds them: the next one may begin before it has ended.
inline bool are_found(const Tensor& masks) {
  return masks.defined() && masks.numel() > 0;
}

inline TapMasks view_masks(const CausalConv1dArgs& args, const Tensor& masks) {
  if (!masks.defined()) {
    return {};
  }
  const auto* data = masks.const_data_ptr<uint8_t>();
  return {
      data,
      ceil_div(args.input.size(2), kMaskTile) * kMaskTile,
      reinterpret_cast<const unsigned*>(data + masks.size(0) * kMaskTile)};
}

} // namespace

} // namespace at::native
