// Rows of positions that lie next to each other: how a warp divides them, and reads and writes 16 bytes a lane
// wherever a row begins and ends.
#pragma once

#include <ATen/native/cuda/CausalConv1dSequences.cuh>

namespace at::native {

namespace {

// The 16 bytes that begin `shift` bytes into two neighbouring vectors.
__device__ inline uint4 join(const uint4& low, const uint4& high, unsigned shift) {
  const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  unsigned by_two[6], by_one[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    by_two[i] = shift & 8 ? words[i + 2] : words[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    by_one[i] = shift & 4 ? by_two[i + 1] : by_two[i];
  }
  const auto bits = (shift & 3) * 8;
  return {
      __funnelshift_r(by_one[0], by_one[1], bits),
      __funnelshift_r(by_one[1], by_one[2], bits),
      __funnelshift_r(by_one[2], by_one[3], bits),
      __funnelshift_r(by_one[3], by_one[4], bits)};
}

// One row of a tensor. A span is what a warp reads at once: a vector a lane.
template <typename scalar_t>
struct Row {
  static constexpr int kVec = 16 / sizeof(scalar_t);
  static constexpr int kSpan = kLanes * kVec;
  using vector_t = Vector<scalar_t, kVec>;

  const scalar_t* data;
  int64_t size;
  unsigned shift; // bytes by which the warp's vectors miss the alignment
  const scalar_t* state = nullptr; // the W-1 inputs before the first, or null for zeros
  int64_t state_stride = 0;
  int width = 1; // W

  // `phase`: positions by which the warp's vectors begin before multiples of kVec.
  __device__ Row(const scalar_t* data, int64_t size, int phase)
      : data(data), size(size), shift(reinterpret_cast<uintptr_t>(data - phase) % 16) {}

  __device__ void set_state(const scalar_t* data, int64_t stride, int width) {
    state = data;
    state_stride = stride;
    this->width = width;
  }

  // The bits of the element at t, which may lie outside.
  __device__ unsigned bits(int64_t t) const {
    const auto* from = t >= 0 ? data + t : state + (t + width - 1) * state_stride;
    const bool exists = t >= 0 ? t < size : state && t >= 1 - width;
    return exists ? __ldg(reinterpret_cast<const typename Word<sizeof(scalar_t)>::type*>(from)) : 0;
  }

  // The vector at t, any part of which may lie outside.
  __device__ vector_t load(int64_t t) const {
    const int margin = shift == 0 ? 0 : kVec;
    if (t >= margin && t + kVec + margin <= size) {
      const auto* aligned = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(data + t) - shift);
      const auto first = __ldg(aligned);
      const auto joined = shift == 0 ? first : join(first, __ldg(aligned + 1), shift);
      return reinterpret_cast<const vector_t&>(joined);
    }
    vector_t vector{};
    if (t < size && (t + kVec > 0 || state)) {
      unsigned elements[kVec];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        elements[j] = bits(t + j);
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        vector.set_bits(j, elements[j]);
      }
    }
    return vector;
  }

  // Of `count` spans from `first` on, those in which every vector is aligned and either inside the row or
  // behind its end: [low, high).
  __device__ void straight_spans(int64_t first, int count, int& low, int& high) const {
    low = first < 0 ? 1 : 0;
    const bool ragged = (size - first) % kVec != 0;
    high = shift != 0 ? 0 : ragged ? static_cast<int>(min((size - first) / kSpan, int64_t(count))) : count;
  }
};

// What a vector of outputs sees: its own inputs, and of the vectors before it the W-1 elements that are needed.
template <typename scalar_t, int W>
struct Window {
  using vector_t = typename Row<scalar_t>::vector_t;
  using acc_t = at::opmath_type<scalar_t>;
  static constexpr int kVec = Row<scalar_t>::kVec;
  static constexpr int kBefore = (W - 1 + kVec - 1) / kVec; // vectors before
  static constexpr int kInputs = W - 1 + kVec;
  // Elements needed of the vector furthest back, and how many a load of them takes.
  static constexpr int kFurthest = W == 1 ? 0 : (W - 2) % kVec + 1;
  static constexpr int kLoaded = kFurthest <= kVec / 2 && sizeof(scalar_t) * kVec / 2 >= 4 ? kVec / 2 : kVec;

  vector_t own;
  vector_t before[kBefore > 0 ? kBefore : 1]; // the nearest first

  // At from + offset, which is aligned; what would lie before from + floor, the start of the row, is read there.
  __device__ void load(const scalar_t* from, int offset, int floor) {
    own = load_vector<scalar_t, kVec>(from + offset);
#pragma unroll
    for (int q = 1; q < kBefore; ++q) {
      before[q - 1] = load_vector<scalar_t, kVec>(from + max(offset - q * kVec, floor));
    }
    if constexpr (kBefore > 0) {
      const auto last = load_vector<scalar_t, kLoaded>(from + max(offset - (kBefore - 1) * kVec - kLoaded, floor));
#pragma unroll
      for (int i = 0; i < last.kWords; ++i) {
        before[kBefore - 1].words[i + own.kWords - last.kWords] = last.words[i];
      }
    }
  }

  // The same for any t and any row.
  __device__ void load(const Row<scalar_t>& row, int64_t t) {
    own = row.load(t);
#pragma unroll
    for (int q = 1; q <= kBefore; ++q) {
      before[q - 1] = row.load(t - q * kVec);
    }
  }

  // Element j + k is tap k of output j.
  __device__ Values<acc_t, kInputs> widen() const {
    Values<acc_t, kInputs> inputs;
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int back = W - 1 - j; // positions before the vector
      inputs[j] = before[(back - 1) / kVec].widen((kVec - back % kVec) % kVec);
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      inputs[W - 1 + j] = own.widen(j);
    }
    return inputs;
  }
};

// What precedes the vectors of a warp that goes through a row span by span: in the words of the lanes before, which for
// the first lanes are the last ones a span ago.
template <typename scalar_t, int W>
struct Preceding {
  using row_t = Row<scalar_t>;
  using vector_t = typename row_t::vector_t;
  static constexpr int kPerWord = vector_t::kPerWord;
  static constexpr int kWords = vector_t::kWords;
  static constexpr int kNeeded = (W - 1 + kPerWord - 1) / kPerWord; // words before a vector
  unsigned last[kNeeded > 0 ? kNeeded : 1]; // for the first lanes; the nearest first

  // Those before position t of row (b, d), which is at `from`: of the row, or at its start of the state, or zeros.
  __device__ Preceding(const scalar_t* from, int64_t t, const View<const scalar_t>& states, int64_t b, int64_t d) {
    const int lane = threadIdx.x % kLanes;
    if (t > 0 || !states.data) {
      vector_t vector{};
#pragma unroll
      for (int i = 0; i < kNeeded; ++i) {
        const int lanes = 1 + i / kWords;
        if (i % kWords == 0 && lane < lanes && t > 0) {
          vector = load_vector<scalar_t, row_t::kVec>(from + (lane - lanes) * row_t::kVec);
        }
        last[i] = vector.words[kWords - 1 - i % kWords];
      }
      return;
    }
    Vector<scalar_t, 1> element{}; // lane + 1 positions before the row
    if (lane < W - 1) {
      element = load_vector<scalar_t, 1>(states.at(b, d, W - 2 - lane));
    }
#pragma unroll
    for (int i = 0; i < kNeeded; ++i) {
      last[i] = 0;
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        const int word = kWords - 1 - i % kWords; // of the vector 1 + i / kWords lanes before
        const int before = (1 + i / kWords - lane) * row_t::kVec - 1 - (word * kPerWord + e);
        last[i] |= __shfl_sync(kEveryLane, element.words[0], before & (kLanes - 1)) << (e * vector_t::kBits % 32);
      }
    }
  }

  // With what precedes it, the lane's vector of the next span.
  __device__ Window<scalar_t, W> window(const vector_t& own) {
    const int lane = threadIdx.x % kLanes;
    Window<scalar_t, W> window;
    window.own = own;
#pragma unroll
    for (int i = 0; i < kNeeded; ++i) {
      const int lanes = 1 + i / kWords, word = kWords - 1 - i % kWords;
      const auto got = __shfl_sync(kEveryLane, own.words[word], (lane - lanes) & (kLanes - 1));
      window.before[lanes - 1].words[word] = lane < lanes ? last[i] : got;
      last[i] = got;
    }
    return window;
  }
};

// Puts what lies before the start of the row where its vector `index` sees it.
template <typename scalar_t, int W, int kInputs>
__device__ void see_row_start(const Row<scalar_t>& row, int index, Values<at::opmath_type<scalar_t>, kInputs>& inputs) {
  constexpr int kVec = Row<scalar_t>::kVec;
  using acc_t = at::opmath_type<scalar_t>;
#pragma unroll
  for (int i = 0; i < W - 1; ++i) {
    const auto value = row.state ? static_cast<acc_t>(load_element(row.state + i * row.state_stride)) : acc_t(0);
#pragma unroll
    for (int q = 0; q * kVec <= i; ++q) {
      inputs[i - q * kVec] = index == q ? value : inputs[i - q * kVec];
    }
  }
}

// Stores those of the positions t.. that lie in a row of `size`.
template <typename scalar_t, int kVec>
__device__ void store_masked(scalar_t* row, int64_t size, int64_t t, const Vector<scalar_t, kVec>& values) {
  if (t >= 0 && t + kVec <= size && reinterpret_cast<uintptr_t>(row + t) % 16 == 0) {
    store_vector(row + t, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (t + i >= 0 && t + i < size) {
      using word_t = typename Word<sizeof(scalar_t)>::type;
      *reinterpret_cast<word_t*>(row + t + i) = values.bits(i);
    }
  }
}

// Of outputs that see all of their taps; elsewhere counts(j, k) says whether output j sees its tap k.
struct EveryTap {
  __device__ bool operator()(int, int) const {
    return true;
  }
};

// The sums before SiLU of neighbouring outputs: inputs[j + k] is tap k of output j.
template <int W, typename acc_t, int kInputs, typename F = EveryTap>
__device__ Values<acc_t, kInputs - (W - 1)> sum_inputs(
    const Values<acc_t, W>& weight, acc_t bias, const Values<acc_t, kInputs>& inputs, const F& counts = {}) {
  Values<acc_t, kInputs - (W - 1)> sums;
#pragma unroll
  for (int j = 0; j < kInputs - (W - 1); ++j) {
    sums[j] = bias;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sums[j] = multiply_add(weight[k], counts(j, k) ? inputs[j + k] : acc_t(0), sums[j]);
    }
  }
  return sums;
}

// Those of outputs of which some do not see all of their taps.
template <typename scalar_t, int W, typename acc_t, int kVec, int kInputs>
__device__ Values<acc_t, kVec> masked_sums(
    const Vector<uint8_t, kVec>& masks,
    const Values<acc_t, W>& weight,
    acc_t bias,
    const Values<acc_t, kInputs>& inputs) {
  return sum_inputs<W>(weight, bias, inputs, [&](int j, int k) { return masks.bits(j) >> k & 1; });
}

// Puts the sums of those outputs t.. that see an initial state of cu_seqlens: few, so one by one. `params`: the
// parameters of either pass.
template <typename scalar_t, int W, typename Params, typename acc_t, int kVec>
__device__ void see_states(const Params& p, int64_t b, int64_t d, int64_t t, Values<acc_t, kVec>& sums) {
  if (p.sequences.cu_seqlens.data && p.initial_state.data && t >= 0 && t < p.time) {
    const Source<scalar_t> source{p.input, p.initial_state};
    auto segment = p.sequences.find(b, t);
#pragma unroll 1
    for (int j = 0; j < kVec && t + j < p.time; ++j) {
      p.sequences.advance(segment, t + j);
      if (t + j - segment.start < W - 1) {
        set_element(sums, j, source.preactivation(p.sequences, segment, p.parameters, b, d, W, t + j));
      }
    }
  }
}

// How warps divide the rows of a tensor: each takes a chunk of some spans of one row.
struct RowChunks {
  int spans; // of a chunk
  int64_t per_row;
  int last_spans; // of the last of a row
  int64_t warps;
  Divisor row_divisor; // per_row
  Divisor batch_divisor; // rows of a batch

  // `aligned`: no row's first vector is cut by the alignment.
  RowChunks(int64_t batch, int64_t channels, int64_t time, int64_t span, int most_spans, bool aligned, int vector)
      : spans(std::min<int64_t>(ceil_div(time + (aligned ? 0 : vector - 1), span), most_spans)),
        per_row(ceil_div(time + (aligned ? 0 : vector - 1), span * spans)),
        last_spans(ceil_div(time + (aligned ? 0 : vector - 1), span) - (per_row - 1) * spans),
        warps(batch * channels * per_row),
        row_divisor(per_row, warps),
        batch_divisor(channels, batch * channels) {}

  // The chunk of this thread's warp of a block, or false. T: unsigned where there are fewer than 2^31 warps.
  template <typename T>
  __device__ bool find(T block, T& b, T& d, T& chunk) const {
    const auto warp = block * kWarps + threadIdx.x / kLanes;
    if (warp >= static_cast<T>(warps)) {
      return false;
    }
    T row;
    row_divisor.divide(warp, row, chunk);
    batch_divisor.divide(row, b, d);
    return true;
  }
};

// Whether all rows of positions begin at a multiple of 16 bytes.
inline bool aligned_rows(const Tensor& tensor) {
  const auto multiple = [&](int64_t dim) {
    return tensor.size(dim) == 1 || tensor.stride(dim) * tensor.element_size() % 16 == 0;
  };
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0 && multiple(0) && multiple(1);
}

} // namespace

} // namespace at::native
