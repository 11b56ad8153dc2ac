// causal_conv1d's backward pass on CUDA: all gradients in one pass over input and grad_output.
//
// The access plans are the forward pass's. With dz the gradient of the sums before SiLU, which are
// computed again, grad_input[s] = sum_k weight[k] * dz[s + W-1 - k] and grad_weight[k] = sum_t dz[t] * tap k.
// Weight and bias gradients leave each tile as one partial sum; a second kernel adds those up in a
// fixed order, so that they are the same on every run.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dUtils.cuh>

#include <ATen/Dispatch.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/zeros.h>
#endif

namespace at::native {

namespace {

// Along time: vectors of a lane in a chunk of a row, and those that it loads at once.
constexpr int kChunk = 16;
constexpr int kBurst = 4;
// Along channels: channels of a thread, positions on their way, warps of a block, and positions of a
// stretch: the longest of which there are many blocks.
constexpr int kChannels = 4;
constexpr int kSteps = 8;
constexpr int kWarps = 4;
constexpr int64_t kLongStretch = 256, kShortStretch = 64;
constexpr int64_t kManyBlocks = 2400;

template <typename scalar_t>
struct BackwardParams {
  using acc_t = at::opmath_type<scalar_t>;
  View<const scalar_t> input;
  View<const scalar_t> initial_state;
  View<const scalar_t> grad_output;
  View<const scalar_t> grad_final_state;
  View<scalar_t> grad_input;
  View<scalar_t> grad_initial_state;
  Parameters<scalar_t> parameters;
  Sequences sequences;
  TapMasks masks;
  int64_t channels;
  int64_t time;
  int64_t width;
  bool silu;
  acc_t* partials; // [units, W+1, partial_channels]: sums for the taps, then the bias; or null
  int64_t partial_channels;
  int64_t blocks; // after these come blocks that compute grad_initial_state, where the others do not

  __device__ acc_t* partial(int64_t unit, int64_t k, int64_t d) const {
    return partials + (unit * (width + 1) + k) * partial_channels + d;
  }
};

// dz at one position.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> preactivation_grad(
    const BackwardParams<scalar_t>& p, const Segment& segment, int64_t b, int64_t d, int64_t t) {
  using acc_t = at::opmath_type<scalar_t>;
  if (!p.sequences.counts(b, t, t)) {
    return 0;
  }
  const auto grad = static_cast<acc_t>(load_element(p.grad_output.at(b, d, t)));
  if (!p.silu) {
    return grad;
  }
  const Source<scalar_t> source{p.input, p.initial_state};
  return grad * Silu<scalar_t>::slope(source.preactivation(p.sequences, segment, p.parameters, b, d, p.width, t));
}

// What the first outputs of a segment pass on to place j of its initial state.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> first_inputs_grad(
    const BackwardParams<scalar_t>& p, const Segment& segment, int64_t b, int64_t d, int64_t j) {
  const auto places = p.width - 1;
  at::opmath_type<scalar_t> sum = 0;
  for (int64_t k = 0; k <= j; ++k) {
    const auto t = segment.start + j - k;
    if (t < segment.end && p.sequences.counts(b, t, segment.start + j - places)) {
      sum = multiply_add(p.parameters.tap(d, k), preactivation_grad(p, segment, b, d, t), sum);
    }
  }
  return sum;
}

// Writes that, with what a sequence shorter than W-1 leaves of the place in its final state.
template <typename scalar_t>
__device__ void write_initial_state_grad(
    const BackwardParams<scalar_t>& p,
    const Segment& segment,
    int64_t b,
    int64_t d,
    int64_t j,
    at::opmath_type<scalar_t> value) {
  const auto places = p.width - 1;
  if (p.grad_final_state.data && !(p.sequences.seq_idx.data == nullptr && segment.end - segment.start >= places)) {
    for (int64_t k = 0; k < places; ++k) {
      int64_t position;
      if (p.sequences.final_source(b, segment, p.width, k, position) && position == j - places) {
        value += static_cast<at::opmath_type<scalar_t>>(load_element(p.grad_final_state.at(segment.state, d, k)));
      }
    }
  }
  *p.grad_initial_state.at(segment.state, d, j) = static_cast<scalar_t>(value);
}

// The gradient of the initial state, a place a thread.
template <typename scalar_t>
__device__ void write_initial_state_grads(const BackwardParams<scalar_t>& p) {
  const auto places = p.width - 1;
  const auto i = (static_cast<int64_t>(blockIdx.x) - p.blocks) * blockDim.x + threadIdx.x;
  const auto n = i / (p.channels * places);
  if (n >= p.sequences.count) {
    return;
  }
  const auto d = i / places % p.channels;
  const auto j = i % places;
  const auto b = p.sequences.cu_seqlens.data ? 0 : n;
  const auto segment = p.sequences.segment(n);
  write_initial_state_grad(p, segment, b, d, j, first_inputs_grad(p, segment, b, d, j));
}

// What the final state passes on to the input at s.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> final_state_grad(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t s) {
  int64_t state, j;
  return p.sequences.final_place(b, s, p.width, state, j)
      ? static_cast<at::opmath_type<scalar_t>>(load_element(p.grad_final_state.at(state, d, j)))
      : 0;
}

// What the states add to the weight gradients, for the outputs t.. that see an initial state of cu_seqlens.
template <typename scalar_t, int W, int kOutputs, typename acc_t>
__device__ void add_state_sums(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    int64_t t,
    const acc_t (&dz)[kOutputs],
    acc_t (&sums)[W + 1]) {
  constexpr int kVec = Row<scalar_t>::kVec;
  if (t >= p.time) {
    return;
  }
  auto segment = p.sequences.find(b, t);
#pragma unroll 1
  for (int j = 0; j < kVec && t + j < p.time; ++j) {
    p.sequences.advance(segment, t + j);
    const auto before = t + j - segment.start;
#pragma unroll
    for (int k = 0; k < W - 1; ++k) {
      if (before + k < W - 1) {
        const auto tap = static_cast<acc_t>(load_element(p.initial_state.at(segment.state, d, before + k)));
        sums[k] = multiply_add(get_element(dz, j), tap, sums[k]);
      }
    }
  }
}

// ---- Along time ----------------------------------------------------------------------------

// A warp takes a chunk of one row, from its end to its beginning, 32 vectors at a time, so that the
// dz beyond a vector are those that a neighbour has just computed.
struct Chunks {
  int64_t vectors; // of a lane
  int64_t chunks; // of a row
  int64_t warps;
  Divisor row_chunks; // the same, to divide by
  Divisor rows; // of a batch
};

// dz at `t`, which lies inside the row, from W inputs that count.
template <typename scalar_t, int W>
__device__ at::opmath_type<scalar_t> plain_preactivation_grad(
    const BackwardParams<scalar_t>& p,
    const scalar_t* x,
    const scalar_t* grad_out,
    const at::opmath_type<scalar_t> (&weight)[W],
    at::opmath_type<scalar_t> bias,
    int64_t t) {
  using acc_t = at::opmath_type<scalar_t>;
  const auto grad = static_cast<acc_t>(load_element(grad_out + t));
  auto z = bias;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    z = multiply_add(weight[k], static_cast<acc_t>(load_element(x + t - (W - 1) + k)), z);
  }
  return p.silu ? grad * Silu<scalar_t>::slope(z) : grad;
}

template <typename scalar_t, int W, bool kPacked>
__global__ void __launch_bounds__(kThreads, 5)
backward_along_time(const BackwardParams<scalar_t> p, const Chunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using row_t = Row<scalar_t>;
  using vector_t = typename row_t::vector_t;
  constexpr int kVec = row_t::kVec;
  constexpr int kBefore = std::max(1, (W - 1 + kVec - 1) / kVec);
  constexpr int kAfter = std::max(1, W - 1); // positions after a vector that its inputs reach
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  const auto warp = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (warp >= chunks.warps) {
    return;
  }
  int64_t chunk, row, b, d;
  chunks.row_chunks.divide(warp, row, chunk);
  chunks.rows.divide(row, b, d);

  // Vectors are aligned in grad_input; masks, in their own rows.
  const auto* data = p.input.at(b, d, 0);
  const auto* grad_data = p.grad_output.at(b, d, 0);
  auto* grad_in = p.grad_input.at(b, d, 0);
  const int phase = kPacked ? 0 : reinterpret_cast<uintptr_t>(grad_in) / sizeof(scalar_t) % kVec;
  const auto shift = [&](const scalar_t* from) {
    return static_cast<unsigned>(reinterpret_cast<uintptr_t>(from - phase) % 16);
  };
  const bool segments = kPacked && p.sequences.cu_seqlens.data;
  const auto* state = p.initial_state.data && !segments ? p.initial_state.at(b, d, 0) : nullptr;
  const row_t x{data, p.time, shift(data), state, p.initial_state.time, W};
  const row_t grad_out{grad_data, p.time, shift(grad_data), nullptr, 0, 1};
  const auto begin = chunk * chunks.vectors * row_t::kSpan - phase;
  const int count = max(int64_t(0), min(int64_t(chunks.vectors), ceil_div(p.time - begin, row_t::kSpan)));
  const auto end = begin + count * row_t::kSpan;
  int low, high, grad_low, grad_high;
  x.straight_spans(begin, count, low, high);
  grad_out.straight_spans(begin, count, grad_low, grad_high);
  high = min(high, grad_high);
  if (p.grad_final_state.data) {
    high = min(high, static_cast<int>(min((p.time - (W - 1) - begin) / row_t::kSpan, int64_t(count))));
  }
  const bool store = p.grad_input.data;
  if (store && reinterpret_cast<uintptr_t>(grad_in + begin) % 16 != 0) {
    high = 0;
  }

  acc_t weight[W], bias = p.parameters.offset(d);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    weight[k] = p.parameters.tap(d, k);
  }
  // The vectors of some spans, and before them those that the first lanes look back to.
  __shared__ vector_t x_staged[kThreads / kLanes][kBefore + kBurst * kLanes];
  __shared__ vector_t grad_staged[kThreads / kLanes][kBurst * kLanes];
  auto* const x_slots = &x_staged[threadIdx.x / kLanes][kBefore + lane];
  auto* const grad_slots = &grad_staged[threadIdx.x / kLanes][lane];
  // dz right after the span, the same in all lanes.
  acc_t carry[kAfter] = {};
  if (W > 1 && end < p.time) {
    acc_t value = 0;
    const auto t = end + lane;
    if (lane < W - 1 && t < p.time) {
      value = !kPacked && t >= W - 1 ? plain_preactivation_grad(p, data, grad_data, weight, bias, t)
                                     : preactivation_grad(p, p.sequences.find(b, t), b, d, t);
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, value, j);
    }
  }
  acc_t sums[W + 1] = {};
  unsigned every_after = 0; // the lanes in whose vectors, a span further on, every tap counts

  // Takes dz from beyond the vector, and leaves what the span before needs.
  const auto exchange = [&](acc_t (&dz)[kVec + kAfter]) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      // Position kVec + j is element j % kVec of a lane further on, or carried from beyond the warp.
      dz[kVec + j] = __shfl_down_sync(kEveryLane, dz[j % kVec], 1 + j / kVec);
#pragma unroll
      for (int over = 0; over <= j / kVec; ++over) {
        dz[kVec + j] = lane == kLanes - 1 - (j / kVec - over) ? carry[over * kVec + j % kVec] : dz[kVec + j];
      }
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, dz[j % kVec], j / kVec);
    }
  };
  int span = count - 1;
#pragma unroll 1
  while (span >= 0) {
    // The straight way: whole vectors, of which every tap counts, as of those that their inputs reach.
#pragma unroll 1
    while (span >= low && span < high) {
      const int burst = min(span - low + 1, kBurst);
      const auto first = begin + (span - burst + 1) * row_t::kSpan;
      const auto* x_from = data + first + lane * kVec;
      const auto* grad_from = grad_data + first + lane * kVec;
      // A group for each span, in the order in which they are needed.
#pragma unroll
      for (int i = kBurst - 1; i >= 0; --i) {
        if (i < burst) {
          load_async(x_slots + i * kLanes, x_from + i * row_t::kSpan);
          load_async(grad_slots + i * kLanes, grad_from + i * row_t::kSpan);
        }
        if (i == 0 && W > 1 && lane < kBefore) {
          if (first >= kBefore * kVec) {
            load_async(x_slots - kBefore, x_from - kBefore * kVec);
          } else {
            x_slots[-kBefore] = row_t::load_masked(x, first + (lane - kBefore) * kVec);
          }
        }
        end_group();
      }
      auto* to = grad_in + first + lane * kVec;
      bool every = true;
#pragma unroll
      for (int i = kBurst - 1; i >= 0; --i) {
        if (i >= burst) {
          continue;
        }
        // The first lanes look back to the span before.
        i <= 1 ? wait_for_groups<0>() : i == 2 ? wait_for_groups<1>() : wait_for_groups<2>();
        __syncwarp();
        if constexpr (kPacked) {
          constexpr unsigned kReached = (1u << kBefore) - 1;
          const auto masks = p.masks.template load<kVec>(b, begin + span * row_t::kSpan + lane * kVec);
          every = __all_sync(kEveryLane, every_tap<W>(masks)) && (every_after & kReached) == kReached;
          if (!every) {
            break;
          }
        }
        acc_t inputs[W - 1 + kVec], dz[kVec + kAfter], dx[kVec]; // inputs[j + k] = tap k of output j
        widen_inputs<scalar_t, W>(x_slots + i * kLanes, inputs);
        const auto grad_vector = grad_slots[i * kLanes];
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dz[j] = grad_vector.widen(j);
        }
        if (p.silu) {
#pragma unroll
          for (int j = 0; j < kVec; ++j) {
            auto z = bias;
#pragma unroll
            for (int k = 0; k < W; ++k) {
              z = multiply_add(weight[k], inputs[j + k], z);
            }
            dz[j] *= Silu<scalar_t>::slope(z);
          }
        }
        exchange(dz);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dx[j] = 0;
#pragma unroll
          for (int k = 0; k < W; ++k) {
            sums[k] = multiply_add(dz[j], inputs[j + k], sums[k]);
            dx[j] = multiply_add(weight[k], dz[j + W - 1 - k], dx[j]);
          }
          sums[W] += dz[j];
        }
        if (store) {
          store_vector(to + i * row_t::kSpan, narrow<scalar_t, kVec>(dx));
        }
        --span;
      }
      wait_for_groups<0>();
      __syncwarp();
      if (!every) {
        break;
      }
    }
    if (span < 0) {
      break;
    }

    // The masked way.
    const auto first = begin + span * row_t::kSpan;
    const auto t = first + lane * kVec;
    x_slots[0] = row_t::load(x, first, lane);
    const auto grad_vector = row_t::load(grad_out, first, lane);
    if (W > 1 && lane < kBefore) {
      x_slots[-kBefore] = row_t::load_masked(x, t - kBefore * kVec);
    }
    __syncwarp();
    acc_t inputs[W - 1 + kVec], dz[kVec + kAfter], dx[kVec];
    widen_inputs<scalar_t, W>(x_slots, inputs);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      dz[j] = grad_vector.widen(j);
      dx[j] = 0;
    }
    {
      Vector<uint8_t, kVec> masks[kBefore + 1]; // of the vector and those after it
      if constexpr (kPacked) {
#pragma unroll
        for (int i = 0; i <= kBefore; ++i) {
          masks[i] = p.masks.template load<kVec>(b, t + i * kVec);
        }
      }
      every_after = kPacked ? __ballot_sync(kEveryLane, every_tap<W>(masks[0])) : 0;
      const auto counts = [&](int j, int k) { return !kPacked || masks[j / kVec].bits(j % kVec) >> k & 1; };
      const bool states = segments && p.initial_state.data;
      if (p.silu) {
        acc_t z[kVec];
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          z[j] = bias;
#pragma unroll
          for (int k = 0; k < W; ++k) {
            z[j] = multiply_add(weight[k], counts(j, k) ? inputs[j + k] : acc_t(0), z[j]);
          }
        }
        if (states) {
          see_states<scalar_t, W>(p, b, d, t, z);
        }
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dz[j] *= Silu<scalar_t>::slope(z[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const bool inside = t + j >= 0 && t + j < p.time;
        dz[j] = inside && counts(j, W - 1) ? dz[j] : acc_t(0);
      }
      if (states) {
        add_state_sums<scalar_t, W>(p, b, d, t, dz, sums);
      }
      exchange(dz);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const int after = j + W - 1 - k;
          sums[k] = multiply_add(dz[j], counts(j, k) ? inputs[j + k] : acc_t(0), sums[k]);
          dx[j] = multiply_add(weight[k], counts(after, k) ? dz[after] : acc_t(0), dx[j]);
        }
        sums[W] += dz[j];
      }
    }
    if (p.grad_final_state.data) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        if constexpr (kPacked) {
          dx[j] += t + j < p.time ? final_state_grad(p, b, d, t + j) : acc_t(0);
        } else if (t + j >= 0 && t + j < p.time && t + j >= p.time - (W - 1)) {
          dx[j] += static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, t + j - (p.time - (W - 1)))));
        }
      }
    }
    if (store) {
      store_masked(grad_in, p.time, t, narrow<scalar_t, kVec>(dx));
    }
    --span;
  }

  if (p.partials) {
    acc_t sum = 0;
#pragma unroll
    for (int k = 0; k <= W; ++k) {
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        sums[k] += __shfl_xor_sync(kEveryLane, sums[k], offset);
      }
      sum = lane == k ? sums[k] : sum;
    }
    if (lane <= W) {
      *p.partial(b * chunks.chunks + chunk, lane, d) = sum;
    }
  }
  // The places of the initial state are the positions before the first: what `carry` reaches.
  if (!segments && p.grad_initial_state.data && chunk == 0) {
    acc_t value = 0;
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      acc_t sum = 0;
#pragma unroll
      for (int k = 0; k <= j; ++k) {
        const auto first_dz = phase == 0 ? carry[j - k] : acc_t(0);
        const bool own = j - k < p.time && (!kPacked || p.masks.data[b * p.masks.pitch + j - k] >> k & 1);
        sum = multiply_add(weight[k], own ? first_dz : acc_t(0), sum);
      }
      value = lane == j ? sum : value;
    }
    if (lane < W - 1) {
      if (phase != 0) {
        value = first_inputs_grad(p, {b, 0, p.time}, b, d, lane);
      }
      write_initial_state_grad(p, {b, 0, p.time}, b, d, lane, value);
    }
  }
}

// ---- Along channels ------------------------------------------------------------------------

// A thread takes kVec channels through a stretch of time.
struct Stretches {
  int64_t groups; // of the channels of a block
  int64_t chunks; // of time
  int64_t steps; // of a chunk
};

template <typename scalar_t, int W, int kVec, bool kPacked>
__global__ void __launch_bounds__(kWarps* kLanes, 3)
backward_along_channels(const BackwardParams<scalar_t> p, const Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  using vector_t = Vector<scalar_t, kVec>;
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  constexpr unsigned kAll = (1u << W) - 1;
  const auto unit = blockIdx.x / stretches.groups;
  const int64_t b = unit / stretches.chunks;
  const auto d = (blockIdx.x % stretches.groups * kWarps * kLanes + threadIdx.x) * kVec;
  const auto begin = unit % stretches.chunks * stretches.steps;
  const int size = min(p.time - begin, stretches.steps);
  acc_t sums[W + 1][kVec] = {};

  if (d < p.channels && size > 0) {
    const auto* x = p.input.at(b, d, begin);
    const auto* grad_out = p.grad_output.at(b, d, begin);
    auto* grad_in = p.grad_input.at(b, d, begin);
    const bool segments = kPacked && p.sequences.cu_seqlens.data;
    const int reach = min(p.time - begin, int64_t(size + W - 1)); // outputs that see inputs of the stretch

    __shared__ vector_t x_ring[kSteps][kWarps * kLanes], grad_ring[kSteps][kWarps * kLanes];
    constexpr bool kAsync = vector_t::kBytes >= 4;
    // The inputs at position i of the stretch, fetched kSteps - 1 positions before.
    const auto fetch = [&](int i) {
      if constexpr (kAsync) {
        if (i < reach) {
          load_async(&x_ring[i % kSteps][threadIdx.x], x);
          load_async(&grad_ring[i % kSteps][threadIdx.x], grad_out);
          x += p.input.time;
          grad_out += p.grad_output.time;
        }
      }
      end_group();
    };
    const auto next = [&](int i, vector_t& vector, vector_t& grad) {
      if constexpr (kAsync) {
        wait_for_groups<kSteps - 2>();
        vector = x_ring[i % kSteps][threadIdx.x];
        grad = grad_ring[i % kSteps][threadIdx.x];
      } else {
        vector = load_vector<scalar_t, kVec>(x);
        grad = load_vector<scalar_t, kVec>(grad_out);
        x += p.input.time;
        grad_out += p.grad_output.time;
      }
    };
#pragma unroll
    for (int i = 0; i < kSteps - 1; ++i) {
      fetch(i);
    }
    acc_t inputs[W][kVec]; // what taps see; at first what precedes the stretch
#pragma unroll
    for (int k = 1; k < W; ++k) {
      const int s = k - W;
      const bool inside = begin + s >= 0;
      vector_t vector{};
      if (inside) {
        vector = load_vector<scalar_t, kVec>(p.input.at(b, d, begin + s));
      }
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        inputs[k][c] = vector.widen(c);
        if (!inside && p.initial_state.data && !segments) {
          inputs[k][c] = static_cast<acc_t>(load_element(p.initial_state.at(b, d + c, W - 1 + begin + s)));
        }
      }
    }
    acc_t weight[W][kVec], bias[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        weight[k][c] = p.parameters.tap(d + c, k);
      }
      bias[c] = p.parameters.offset(d + c);
    }
    acc_t dz[W][kVec] = {}; // k positions ago
    unsigned masks[W]; // of the outputs k positions ago, if packed
#pragma unroll
    for (int k = 0; k < W; ++k) {
      masks[k] = kAll;
    }
    const bool store = p.grad_input.data;
    // Before the first position comes the initial state.
    const bool store_state = !segments && p.grad_initial_state.data && begin == 0;
    const auto push = [&](const vector_t& vector, const vector_t& grad) {
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
#pragma unroll
        for (int k = 0; k < W - 1; ++k) {
          inputs[k][c] = inputs[k + 1][c];
          dz[W - 1 - k][c] = dz[W - 2 - k][c];
        }
        inputs[W - 1][c] = vector.widen(c);
        dz[0][c] = grad.widen(c);
      }
    };

    int i = 0; // position in the stretch
    bool straight = true; // whether the outputs of the stretch of the last W-1 positions have all their taps
    while (i < size + W - 1) {
      // Straight: several positions at once, of which every tap counts, as of the outputs before.
      bool every = i + kSteps <= size && !(store_state && i < W - 1);
      if constexpr (kPacked) {
        every = every && straight && every_tap<W>(p.masks.template load<kSteps>(b, begin + i));
      }
      if (every) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          vector_t vector, grad;
          next(j, vector, grad);
          fetch(i + j + kSteps - 1);
          push(vector, grad);
          if (p.silu) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
              auto z = bias[c];
#pragma unroll
              for (int k = 0; k < W; ++k) {
                z = multiply_add(weight[k][c], inputs[k][c], z);
              }
              dz[0][c] *= Silu<scalar_t>::slope(z);
            }
          }
          acc_t dx[kVec];
#pragma unroll
          for (int c = 0; c < kVec; ++c) {
            dx[c] = 0;
#pragma unroll
            for (int k = 0; k < W; ++k) {
              sums[k][c] = multiply_add(dz[0][c], inputs[k][c], sums[k][c]);
              dx[c] = multiply_add(weight[k][c], dz[k][c], dx[c]);
            }
            sums[W][c] += dz[0][c];
          }
          if (i + j >= W - 1 && store) {
            store_vector(grad_in, narrow<scalar_t, kVec>(dx));
            grad_in += p.grad_input.time;
          }
        }
        i += kSteps;
      } else {
        const int stop = min(i + kSteps, size + W - 1);
#pragma unroll 1
        for (; i < stop; ++i) {
          const auto t = begin + i;
          vector_t vector{}, grad{};
          if (i < reach) {
            next(i, vector, grad);
            fetch(i + kSteps - 1);
          }
          push(vector, grad);
#pragma unroll
          for (int k = W - 1; k > 0; --k) {
            masks[k] = masks[k - 1];
          }
          masks[0] = kPacked && i < reach ? __ldg(p.masks.data + b * p.masks.pitch + t) : kAll;
          const bool states = segments && p.initial_state.data && masks[0] != kAll && i < reach;
          Segment segment;
          if (states) {
            segment = p.sequences.find(b, t);
          }
          const auto seen = [&](int k, int c) {
            return masks[0] >> k & 1 ? inputs[k][c]
                : states ? static_cast<acc_t>(
                               load_element(p.initial_state.at(segment.state, d + c, t - segment.start + k)))
                         : acc_t(0);
          };
#pragma unroll
          for (int c = 0; c < kVec; ++c) {
            acc_t taps[W];
            auto z = bias[c];
#pragma unroll
            for (int k = 0; k < W; ++k) {
              taps[k] = seen(k, c);
              z = multiply_add(weight[k][c], taps[k], z);
            }
            dz[0][c] *= p.silu ? Silu<scalar_t>::slope(z) : acc_t(1);
            dz[0][c] = i >= reach || masks[0] == 0 ? acc_t(0) : dz[0][c];
            if (i < size) {
#pragma unroll
              for (int k = 0; k < W; ++k) {
                sums[k][c] = multiply_add(dz[0][c], taps[k], sums[k][c]);
              }
              sums[W][c] += dz[0][c];
            }
          }
          const int s = i - (W - 1);
          acc_t dx[kVec];
#pragma unroll
          for (int c = 0; c < kVec; ++c) {
            dx[c] = 0;
#pragma unroll
            for (int k = 0; k < W; ++k) {
              dx[c] = multiply_add(weight[k][c], !kPacked || masks[k] >> k & 1 ? dz[k][c] : acc_t(0), dx[c]);
            }
          }
          if (s < 0 && store_state) {
#pragma unroll 1
            for (int c = 0; c < kVec; ++c) {
              write_initial_state_grad(p, {b, 0, p.time}, b, d + c, i, get_element(dx, c));
            }
          }
          if (s >= 0 && store) {
            if (p.grad_final_state.data) {
#pragma unroll 1
              for (int c = 0; c < kVec; ++c) {
                set_element(dx, c, get_element(dx, c) + final_state_grad(p, b, d + c, begin + s));
              }
            }
            store_vector(grad_in, narrow<scalar_t, kVec>(dx));
            grad_in += p.grad_input.time;
          }
        }
        straight = true;
#pragma unroll
        for (int k = 0; k < W - 1; ++k) {
          straight = straight && masks[k] == kAll;
        }
      }
    }
  }

  if (p.partials && d < p.channels) {
#pragma unroll
    for (int k = 0; k <= W; ++k) {
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        *p.partial(unit, k, d + c) = sums[k][c];
      }
    }
  }
}

// ---- Any width -----------------------------------------------------------------------------

// Through a tensor of all dz [B, D, T], once for dz and once each for what is computed from it.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
preactivation_grads(const BackwardParams<scalar_t> p, at::opmath_type<scalar_t>* dz, int64_t outputs) {
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < outputs) {
    const auto t = i % p.time, d = i / p.time % p.channels, b = i / p.time / p.channels;
    dz[i] = preactivation_grad(p, p.sequences.find(b, t), b, d, t);
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
input_grad_any_width(const BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t inputs) {
  using acc_t = at::opmath_type<scalar_t>;
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= inputs) {
    return;
  }
  const auto s = i % p.time, d = i / p.time % p.channels, b = i / p.time / p.channels;
  const auto segment = p.sequences.find(b, s);
  acc_t sum = 0;
  for (int64_t k = 0; k < p.width; ++k) {
    const auto after = p.width - 1 - k;
    if (s + after < segment.end && p.sequences.counts(b, s + after, s)) {
      sum = multiply_add(p.parameters.tap(d, k), dz[i + after], sum);
    }
  }
  if (p.grad_final_state.data) {
    sum += final_state_grad(p, b, d, s);
  }
  *p.grad_input.at(b, d, s) = static_cast<scalar_t>(sum);
}

// A block sums for one channel and tap (tap W: the bias) into a partial of its own.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
weight_grad_any_width(const BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t batch) {
  using acc_t = at::opmath_type<scalar_t>;
  __shared__ acc_t shared[kThreads];
  const auto d = blockIdx.x % p.channels;
  const auto k = blockIdx.x / p.channels;
  const Source<scalar_t> source{p.input, p.initial_state};
  acc_t sum = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = threadIdx.x; t < p.time; t += kThreads) {
      const auto tap = k == p.width
          ? acc_t(1)
          : source.tap(p.sequences, p.sequences.find(b, t), b, d, p.width, t, t + k - (p.width - 1));
      sum = multiply_add(dz[(b * p.channels + d) * p.time + t], tap, sum);
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *p.partial(0, k, d) = shared[0];
  }
}

// ---- Sums of the partials ------------------------------------------------------------------

template <typename acc_t>
struct ParameterGrads {
  void* weight; // of the weight's dtype, or null
  void* bias;
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
};

constexpr int kRows = 8;

// One column of [units, (W+1) * D] a thread, in kRows interleaved parts.
template <typename acc_t, typename param_t>
__global__ void __launch_bounds__(kLanes* kRows)
sum_partials(const acc_t* partials, int64_t units, int64_t channels, int64_t width, ParameterGrads<acc_t> grads) {
  __shared__ acc_t shared[kRows][kLanes];
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  const auto columns = (width + 1) * channels;
  const auto column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  acc_t sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t unit = row; unit < units; unit += kRows) {
      sum += load_element(partials + unit * columns + column);
    }
  }
  shared[row][lane] = sum;
  __syncthreads();
  if (row != 0 || column >= columns) {
    return;
  }
#pragma unroll
  for (int i = 1; i < kRows; ++i) {
    sum += shared[i][lane];
  }
  const auto d = column % channels, k = column / channels;
  if (k < width && grads.weight) {
    static_cast<param_t*>(grads.weight)[d * grads.weight_channel + k * grads.weight_tap] = static_cast<param_t>(sum);
  }
  if (k == width && grads.bias) {
    static_cast<param_t*>(grads.bias)[d * grads.bias_channel] = static_cast<param_t>(sum);
  }
}

// ---- Launch --------------------------------------------------------------------------------

template <typename scalar_t>
struct Backward {
  using acc_t = at::opmath_type<scalar_t>;
  CausalConv1dArgs args;
  Tensor grad_output;
  Tensor grad_final_state;
  CausalConv1dGrads grads;
  Tensor last; // of Sequences
  Tensor masks;

  int64_t batch() const {
    return args.input.size(0);
  }
  int64_t channels() const {
    return args.input.size(1);
  }
  int64_t time() const {
    return args.input.size(2);
  }
  bool packed() const {
    return masks.defined();
  }
  bool parameters() const {
    return grads.weight.defined() || grads.bias.defined();
  }

  // [units, W+1, D], or undefined if no parameter wants a gradient.
  Tensor empty_partials(int64_t units) const {
    return parameters() ? at::empty(
                              {units, args.weight.size(1) + 1, channels()},
                              args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value))
                        : Tensor();
  }

  BackwardParams<scalar_t> params(const Tensor& partials, int64_t first_channel, int64_t blocks) const {
    return {
        view<const scalar_t>(args.input),
        view<const scalar_t>(args.initial_state),
        view<const scalar_t>(grad_output),
        view<const scalar_t>(grad_final_state),
        view<scalar_t>(grads.input),
        view<scalar_t>(grads.initial_state),
        {args.weight, args.bias},
        Sequences(args, last),
        view_masks(masks),
        channels(),
        time(),
        args.weight.size(1),
        args.silu,
        partials.defined() ? partials.mutable_data_ptr<acc_t>() + first_channel : nullptr,
        partials.defined() ? partials.size(2) : 0,
        blocks};
  }

  template <typename Kernel, typename... Extra>
  void launch(Kernel kernel, int64_t threads, const BackwardParams<scalar_t>& p, const Extra&... extra) const {
    const bool more =
        grads.initial_state.defined() && (args.cu_seqlens.defined() || p.width > kMaxWidth || p.time == 0);
    const auto blocks = p.blocks + (more ? ceil_div(grads.initial_state.numel(), threads) : 0);
    if (blocks > 0) {
      kernel<<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(p, extra...);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }

  void reduce(const Tensor& partials) const {
    if (!partials.defined() || channels() == 0) {
      return;
    }
    const auto width = args.weight.size(1);
    const auto& weight = grads.weight;
    const auto& bias = grads.bias;
    const ParameterGrads<acc_t> to{
        weight.defined() ? weight.mutable_data_ptr() : nullptr,
        bias.defined() ? bias.mutable_data_ptr() : nullptr,
        weight.defined() ? weight.stride(0) : 0,
        weight.defined() ? weight.stride(1) : 0,
        bias.defined() ? bias.stride(0) : 0};
    const bool narrow = args.weight.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value;
    const auto kernel = narrow ? sum_partials<acc_t, scalar_t> : sum_partials<acc_t, acc_t>;
    kernel<<<ceil_div((width + 1) * channels(), kLanes), kLanes * kRows, 0, c10::cuda::getCurrentCUDAStream()>>>(
        partials.const_data_ptr<acc_t>(), partials.size(0), channels(), width, to);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <int W>
  void along_time() const {
    constexpr int64_t kSpan = Row<scalar_t>::kSpan;
    const auto rows = batch() * channels();
    // A row whose first vector is cut by the alignment may have one more.
    const bool aligned = packed() || (grads.input.defined() && aligned_rows(grads.input));
    const auto spans = ceil_div(time() + (aligned ? 0 : Row<scalar_t>::kVec - 1), kSpan);
    const auto vectors = std::min<int64_t>(spans, kChunk);
    const auto count = ceil_div(spans, vectors);
    const auto warps = rows * count;
    const Chunks c{
        vectors, count, warps, Divisor(count, warps), Divisor(channels(), rows)};
    const auto partials = empty_partials(batch() * c.chunks);
    const auto p = params(partials, 0, ceil_div(warps * kLanes, kThreads));
    launch(packed() ? backward_along_time<scalar_t, W, true> : backward_along_time<scalar_t, W, false>, kThreads, p, c);
    reduce(partials);
  }

  int64_t steps() const {
    int64_t steps = kLongStretch;
    const auto groups = ceil_div(channels(), kWarps * kLanes * kChannels);
    while (steps > kShortStretch && batch() * ceil_div(time(), steps) * groups < kManyBlocks) {
      steps /= 2;
    }
    return steps;
  }

  // `first` and `steps` tell where the partials go and how time is divided, the same for all parts of a call.
  template <int W, int kVec, bool kPacked>
  void along_channels(const Tensor& partials, int64_t first, int64_t steps) const {
    Stretches s;
    s.groups = ceil_div(channels(), kWarps * kLanes * kVec);
    s.chunks = ceil_div(time(), steps);
    s.steps = steps;
    const auto p = params(partials, first, batch() * s.chunks * s.groups);
    launch(backward_along_channels<scalar_t, W, kVec, kPacked>, kWarps * kLanes, p, s);
  }

  template <int W>
  void one_channel(const Tensor& partials, int64_t first, int64_t steps) const {
    packed() ? along_channels<W, 1, true>(partials, first, steps) : along_channels<W, 1, false>(partials, first, steps);
  }

  // The same for some of the channels.
  Backward cut(int64_t first, int64_t size) const {
    const auto cut = [&](const Tensor& tensor, int64_t dim) {
      return tensor.defined() ? tensor.narrow(dim, first, size) : tensor;
    };
    auto part = *this;
    part.args.input = cut(args.input, 1);
    part.args.weight = cut(args.weight, 0);
    part.args.bias = cut(args.bias, 0);
    part.args.initial_state = cut(args.initial_state, 1);
    part.grad_output = cut(grad_output, 1);
    part.grad_final_state = cut(grad_final_state, 1);
    part.grads.input = cut(grads.input, 1);
    part.grads.initial_state = cut(grads.initial_state, 1);
    return part;
  }

  template <int W>
  void run() const {
    const auto tensors = {args.input, grad_output, grads.input};
    if constexpr (!std::is_same_v<scalar_t, double>) {
      if (time() > 1 && contiguous_along(tensors, 2)) {
        return along_time<W>();
      }
    }
    const auto steps = this->steps();
    const auto partials = empty_partials(batch() * ceil_div(time(), steps));
    int64_t head = channels(), body = 0;
    if constexpr (!std::is_same_v<scalar_t, double>) {
      if (contiguous_along(tensors, 1)) {
        head = std::min(unaligned_channels(tensors, kChannels), channels());
        body = (channels() - head) / kChannels * kChannels;
      }
      if (body > 0) {
        const auto part = cut(head, body);
        packed() ? part.template along_channels<W, kChannels, true>(partials, head, steps)
                 : part.template along_channels<W, kChannels, false>(partials, head, steps);
      }
    }
    const auto tail = channels() - head - body;
    if (head > 0 || channels() == 0) {
      cut(0, head).template one_channel<W>(partials, 0, steps);
    }
    if (tail > 0) {
      cut(head + body, tail).template one_channel<W>(partials, head + body, steps);
    }
    reduce(partials);
  }

  void any_width() const {
    const Tensor dz = at::empty(
        {batch(), channels(), time()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    const auto partials = empty_partials(1);
    const auto p = params(partials, 0, ceil_div(dz.numel(), kThreads));
    auto* data = dz.mutable_data_ptr<acc_t>();
    launch(preactivation_grads<scalar_t>, kThreads, p, data, dz.numel());
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (grads.input.defined() && dz.numel() > 0) {
      input_grad_any_width<scalar_t><<<p.blocks, kThreads, 0, stream>>>(p, data, dz.numel());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    if (parameters() && channels() > 0) {
      weight_grad_any_width<scalar_t><<<channels() * (p.width + 1), kThreads, 0, stream>>>(p, data, batch());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      reduce(partials);
    }
  }
};

void causal_conv1d_backward_kernel(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  const c10::cuda::CUDAGuard guard(args.input.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_backward_cuda", [&] {
    // Without a gradient of the output, as where the final state alone is used, it is 0.
    const auto grad = grad_output.defined() ? grad_output : at::zeros({1}, args.input.options()).expand_as(args.input);
    const Backward<scalar_t> call{args, grad, grad_final_state, grads, last_positions(args, grad_final_state), tap_masks(args)};
    with_width(args.weight.size(1), [&](auto width) {
      if constexpr (width == 0) {
        call.any_width();
      } else {
        call.template run<width>();
      }
    });
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_backward_stub, &causal_conv1d_backward_kernel)

} // namespace at::native
