// causal_conv1d's forward pass on CUDA, final state included, in one launch.
//
// Two plans, by the dimension whose elements lie next to each other. Along time a warp walks along a
// row, a 16-byte vector of positions a lane; lanes take the W-1 inputs before theirs from the lanes
// before. Along channels a thread takes a few channels through a stretch of time, with the last W-1
// inputs in registers; with one channel that serves all other strides.
// What has a straight way - no edge of a row, every tap in its own sequence - takes it in code of its
// own. All give each output the same operations in the same order, so layouts and chunks agree to the bit.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dUtils.cuh>

#include <ATen/Dispatch.h>

namespace at::native {

namespace {

// Along time: vectors of a lane in a chunk of a row, and those that it loads at once. What a warp asks
// for at once is 2 KiB in a piece, which memory answers faster than the same in smaller pieces.
constexpr int kChunk = 8;
constexpr int kBurst = 4;
// Along channels: channels of a thread, positions on their way, and positions of a stretch.
constexpr int kChannels = 4;
constexpr int kSteps = 8;
constexpr int kStretch = 32;

template <typename scalar_t>
struct ForwardParams {
  View<const scalar_t> input;
  View<const scalar_t> initial_state;
  View<scalar_t> output;
  View<scalar_t> final_state;
  Parameters<scalar_t> parameters;
  Sequences sequences;
  TapMasks masks;
  int64_t channels;
  int64_t time;
  int64_t width;
  bool silu;
  int64_t blocks; // after these come blocks that write the final state, where the others do not
};

// Places of the final state, one a thread.
template <typename scalar_t>
__device__ void write_final_state(const ForwardParams<scalar_t>& p) {
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
  int64_t position;
  scalar_t value = 0;
  if (p.sequences.final_source(b, segment, p.width, j, position)) {
    if (position >= 0) {
      value = load_element(p.input.at(b, d, segment.start + position));
    } else if (p.initial_state.data) {
      value = load_element(p.initial_state.at(n, d, places + position));
    }
  }
  *p.final_state.at(n, d, j) = value;
}

// ---- Along time ----------------------------------------------------------------------------

struct Chunks {
  int64_t vectors; // of a lane
  int64_t warps;
  Divisor chunks; // of a row
  Divisor rows; // of a batch
};

template <typename scalar_t, int W, bool kPacked>
__global__ void __launch_bounds__(kThreads, kPacked ? 6 : 8)
forward_along_time(const ForwardParams<scalar_t> p, const Chunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using row_t = Row<scalar_t>;
  using vector_t = typename row_t::vector_t;
  constexpr int kVec = row_t::kVec;
  constexpr int kBefore = std::max(1, (W - 1 + kVec - 1) / kVec);
  if (blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  const auto warp = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (warp >= chunks.warps) {
    return;
  }
  int64_t chunk, row, b, d;
  chunks.chunks.divide(warp, row, chunk);
  chunks.rows.divide(row, b, d);

  // Vectors are aligned in the output; masks, in their own rows.
  auto* out = p.output.at(b, d, 0);
  const int phase = kPacked ? 0 : reinterpret_cast<uintptr_t>(out) / sizeof(scalar_t) % kVec;
  const auto* data = p.input.at(b, d, 0);
  const bool segments = kPacked && p.sequences.cu_seqlens.data;
  const row_t x{
      data,
      p.time,
      static_cast<unsigned>(reinterpret_cast<uintptr_t>(data - phase) % 16),
      p.initial_state.data && !segments ? p.initial_state.at(b, d, 0) : nullptr,
      p.initial_state.time,
      W};
  const auto begin = chunk * chunks.vectors * row_t::kSpan - phase;
  const int count = min(int64_t(chunks.vectors), ceil_div(p.time - begin, row_t::kSpan));
  if (count <= 0) {
    return;
  }
  int low, high;
  x.straight_spans(begin, count, low, high);
  acc_t weight[W], bias = p.parameters.offset(d);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    weight[k] = p.parameters.tap(d, k);
  }
  const auto activate = [&](acc_t (&y)[kVec]) {
    if (p.silu) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        y[j] = Silu<scalar_t>::silu(y[j]);
      }
    }
  };

  unsigned masked = (1u << count) - 1; // the spans left for the masked way

  // The straight way: whole vectors, of which every tap counts.
  if (low < high && reinterpret_cast<uintptr_t>(out + begin) % 16 == 0) {
    masked &= ~((1u << high) - (1u << low));
    const auto* from = data + begin + low * row_t::kSpan + lane * kVec;
    auto* to = out + begin + low * row_t::kSpan + lane * kVec;
    vector_t carry[kBefore]; // for the first lanes: what lies before the span
#pragma unroll
    for (int q = 1; W > 1 && q <= kBefore; ++q) {
      if (lane < q) {
        carry[q - 1] = row_t::load_masked(x, begin + low * row_t::kSpan + (lane - q) * kVec);
      }
    }
#pragma unroll 1
    for (int span = low; span < high; span += kBurst) {
      vector_t vectors[kBurst];
      Vector<uint8_t, kVec> masks[kBurst];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        if (span + i < high) {
          vectors[i] = load_vector<scalar_t, kVec>(from + i * row_t::kSpan);
          if constexpr (kPacked) {
            masks[i] = p.masks.template load<kVec>(b, begin + (span + i) * row_t::kSpan + lane * kVec);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        if (span + i >= high) {
          break;
        }
        vector_t before[kBefore];
#pragma unroll
        for (int q = 1; W > 1 && q <= kBefore; ++q) {
          const auto rotated = shuffle_last(vectors[i], (lane - q) & (kLanes - 1), W - 1 - (q - 1) * kVec);
          before[q - 1] = lane < q ? carry[q - 1] : rotated;
          carry[q - 1] = rotated;
        }
        if (kPacked && !__all_sync(kEveryLane, every_tap<W>(masks[i]))) {
          masked |= 1u << (span + i);
          continue;
        }
        acc_t inputs[W - 1 + kVec], y[kVec]; // inputs[j + k] = tap k of output j
        widen_inputs<scalar_t, W>(before, vectors[i], inputs);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          y[j] = bias;
#pragma unroll
          for (int k = 0; k < W; ++k) {
            y[j] = multiply_add(weight[k], inputs[j + k], y[j]);
          }
        }
        activate(y);
        store_vector(to + i * row_t::kSpan, narrow<scalar_t, kVec>(y));
      }
      from += kBurst * row_t::kSpan;
      to += kBurst * row_t::kSpan;
    }
  }

  __shared__ vector_t staged[kThreads / kLanes][kBefore + kLanes];
  auto* const slots = &staged[threadIdx.x / kLanes][kBefore + lane];
#pragma unroll 1
  for (; masked != 0; masked &= masked - 1) {
    const auto first = begin + (__ffs(masked) - 1) * row_t::kSpan;
    const auto t = first + lane * kVec;
    __syncwarp();
    slots[0] = row_t::load(x, first, lane);
    if (W > 1 && lane < kBefore) {
      slots[-kBefore] = row_t::load_masked(x, t - kBefore * kVec);
    }
    __syncwarp();
    acc_t inputs[W - 1 + kVec], y[kVec];
    widen_inputs<scalar_t, W>(slots, inputs);
    Vector<uint8_t, kVec> masks;
    if constexpr (kPacked) {
      masks = p.masks.template load<kVec>(b, t);
    }
    const auto counts = [&](int j, int k) { return !kPacked || masks.bits(j) >> k & 1; };
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      y[j] = bias;
#pragma unroll
      for (int k = 0; k < W; ++k) {
        y[j] = multiply_add(weight[k], counts(j, k) ? inputs[j + k] : acc_t(0), y[j]);
      }
    }
    if (segments && p.initial_state.data) {
      see_states<scalar_t, W>(p, b, d, t, y);
    }
    activate(y);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      y[j] = counts(j, W - 1) ? y[j] : acc_t(0);
    }
    store_masked(out, p.time, t, narrow<scalar_t, kVec>(y));
  }
  if (!kPacked && p.final_state.data && begin + count * row_t::kSpan >= p.time && lane < W - 1) {
    const auto s = p.time - (W - 1) + lane;
    *p.final_state.at(b, d, lane) = s >= 0 ? load_element(data + s)
        : p.initial_state.data             ? load_element(p.initial_state.at(b, d, W - 1 + s))
                                           : scalar_t(0);
  }
}

// ---- Along channels ------------------------------------------------------------------------

// A thread takes kVec channels through a stretch of time.
struct Stretches {
  int64_t vectors; // of channels
  int64_t chunks; // of time
  int64_t threads;
};

template <typename scalar_t, int W, int kVec, bool kPacked>
__global__ void __launch_bounds__(kThreads)
forward_along_channels(const ForwardParams<scalar_t> p, const Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  using vector_t = Vector<scalar_t, kVec>;
  if (blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  const auto thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= stretches.threads) {
    return;
  }
  const auto d = thread % stretches.vectors * kVec;
  const auto chunk = thread / stretches.vectors % stretches.chunks;
  const auto b = thread / stretches.vectors / stretches.chunks;
  const auto begin = chunk * kStretch;
  const int size = min(p.time - begin, int64_t(kStretch));
  const auto* x = p.input.at(b, d, begin);
  auto* out = p.output.at(b, d, begin);
  const bool segments = kPacked && p.sequences.cu_seqlens.data;

  __shared__ vector_t ring[kSteps][kThreads];
  constexpr bool kAsync = vector_t::kBytes >= 4;
  const auto* ahead = x;
  // The input at position i of the stretch, fetched kSteps - 1 positions before.
  const auto fetch = [&](int i) {
    if (kAsync && i < size) {
      if constexpr (kAsync) {
        load_async(&ring[i % kSteps][threadIdx.x], ahead);
      }
      ahead += p.input.time;
    }
    end_group();
  };
  const auto next = [&](int i) {
    if constexpr (kAsync) {
      wait_for_groups<kSteps - 2>();
      return ring[i % kSteps][threadIdx.x];
    } else {
      const auto vector = load_vector<scalar_t, kVec>(ahead);
      ahead += p.input.time;
      return vector;
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
      vector = load_vector<scalar_t, kVec>(x + s * p.input.time);
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
  const auto push = [&](const vector_t& vector) {
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
#pragma unroll
      for (int k = 0; k < W - 1; ++k) {
        inputs[k][c] = inputs[k + 1][c];
      }
      inputs[W - 1][c] = vector.widen(c);
    }
  };
  const auto activate = [&](acc_t (&y)[kVec]) {
    if (p.silu) {
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        y[c] = Silu<scalar_t>::silu(y[c]);
      }
    }
  };

  for (int start = 0; start < size; start += kSteps) {
    Vector<uint8_t, kSteps> masks{};
    // Straight: several positions at once, of which every tap counts.
    bool straight = start + kSteps <= size;
    if constexpr (kPacked) {
      masks = p.masks.template load<kSteps>(b, begin + start);
      straight = straight && every_tap<W>(masks);
    }
    if (straight) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        push(next(i));
        fetch(start + i + kSteps - 1);
        acc_t y[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
          y[c] = bias[c];
#pragma unroll
          for (int k = 0; k < W; ++k) {
            y[c] = multiply_add(weight[k][c], inputs[k][c], y[c]);
          }
        }
        activate(y);
        store_vector(out, narrow<scalar_t, kVec>(y));
        out += p.output.time;
      }
      continue;
    }
#pragma unroll 1
    for (int i = start; i < min(start + kSteps, size); ++i) {
      const auto t = begin + i;
      push(next(i));
      fetch(i + kSteps - 1);
      const unsigned mask = kPacked ? masks.bits(i - start) : (1u << W) - 1;
      const bool state = segments && p.initial_state.data && mask != (1u << W) - 1;
      Segment segment;
      if (state) {
        segment = p.sequences.find(b, t);
      }
      acc_t y[kVec];
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        y[c] = bias[c];
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const auto tap = mask >> k & 1 ? inputs[k][c]
              : state ? static_cast<acc_t>(
                            load_element(p.initial_state.at(segment.state, d + c, t - segment.start + k)))
                      : acc_t(0);
          y[c] = multiply_add(weight[k][c], tap, y[c]);
        }
      }
      activate(y);
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        y[c] = mask == 0 ? acc_t(0) : y[c];
      }
      store_vector(out, narrow<scalar_t, kVec>(y));
      out += p.output.time;
    }
  }
  if (!kPacked && p.final_state.data && begin + size == p.time) {
#pragma unroll
    for (int k = 1; k < W; ++k) {
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        *p.final_state.at(b, d + c, k - 1) = static_cast<scalar_t>(inputs[k][c]);
      }
    }
  }
}

// ---- Any width -----------------------------------------------------------------------------

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
forward_any_width(const ForwardParams<scalar_t> p, int64_t outputs, bool along_time) {
  if (blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= outputs) {
    return;
  }
  const auto t = along_time ? i % p.time : i / p.channels % p.time;
  const auto d = along_time ? i / p.time % p.channels : i % p.channels;
  const auto b = i / p.time / p.channels;
  const Source<scalar_t> source{p.input, p.initial_state};
  const auto segment = p.sequences.find(b, t);
  at::opmath_type<scalar_t> y = 0;
  if (p.sequences.counts(b, t, t)) {
    y = source.preactivation(p.sequences, segment, p.parameters, b, d, p.width, t);
    y = p.silu ? Silu<scalar_t>::silu(y) : y;
  }
  *p.output.at(b, d, t) = static_cast<scalar_t>(y);
}

// ---- Launch --------------------------------------------------------------------------------

template <typename scalar_t>
struct Forward {
  CausalConv1dArgs args;
  Tensor output;
  Tensor final_state;
  Tensor last; // of Sequences
  Tensor masks;

  ForwardParams<scalar_t> params(int64_t threads) const {
    ForwardParams<scalar_t> p{
        view<const scalar_t>(args.input),
        view<const scalar_t>(args.initial_state),
        view<scalar_t>(output),
        view<scalar_t>(final_state),
        {args.weight, args.bias},
        Sequences(args, last),
        view_masks(masks),
        args.input.size(1),
        args.input.size(2),
        args.weight.size(1),
        args.silu,
        ceil_div(threads, kThreads)};
    return p;
  }

  template <typename Kernel, typename... Extra>
  void launch(Kernel kernel, int64_t threads, const Extra&... extra) const {
    const auto p = params(threads);
    const bool more = final_state.defined() && (masks.defined() || p.width > kMaxWidth || p.time == 0);
    const auto blocks = p.blocks + (more ? ceil_div(final_state.numel(), kThreads) : 0);
    if (blocks > 0) {
      kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(p, extra...);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }

  template <int W>
  void along_time() const {
    constexpr int64_t kSpan = Row<scalar_t>::kSpan;
    const auto rows = args.input.size(0) * args.input.size(1);
    // A row whose first vector is cut by the alignment may have one more.
    const auto reach = args.input.size(2) + (masks.defined() || aligned_rows(output) ? 0 : Row<scalar_t>::kVec - 1);
    const auto spans = ceil_div(reach, kSpan);
    const auto vectors = std::min<int64_t>(spans, kChunk);
    const auto count = ceil_div(spans, vectors);
    const auto warps = rows * count;
    const Chunks chunks{vectors, warps, Divisor(count, warps), Divisor(args.input.size(1), rows)};
    if (masks.defined()) {
      launch(forward_along_time<scalar_t, W, true>, warps * kLanes, chunks);
    } else {
      launch(forward_along_time<scalar_t, W, false>, warps * kLanes, chunks);
    }
  }

  template <int W, int kVec, bool kPacked>
  void along_channels() const {
    Stretches s;
    s.vectors = args.input.size(1) / kVec;
    s.chunks = ceil_div(args.input.size(2), kStretch);
    s.threads = args.input.size(0) * s.chunks * s.vectors;
    launch(forward_along_channels<scalar_t, W, kVec, kPacked>, s.threads, s);
  }

  template <int W>
  void one_channel() const {
    masks.defined() ? along_channels<W, 1, true>() : along_channels<W, 1, false>();
  }

  // The same for some of the channels.
  Forward channels(int64_t first, int64_t size) const {
    const auto cut = [&](const Tensor& tensor, int64_t dim) {
      return tensor.defined() ? tensor.narrow(dim, first, size) : tensor;
    };
    auto part = *this;
    part.args.input = cut(args.input, 1);
    part.args.weight = cut(args.weight, 0);
    part.args.bias = cut(args.bias, 0);
    part.args.initial_state = cut(args.initial_state, 1);
    part.output = cut(output, 1);
    part.final_state = cut(final_state, 1);
    return part;
  }

  template <int W>
  void run() const {
    const auto channels = args.input.size(1);
    if constexpr (!std::is_same_v<scalar_t, double>) {
      if (args.input.size(2) > 1 && contiguous_along({args.input, output}, 2)) {
        return along_time<W>();
      }
      if (contiguous_along({args.input, output}, 1)) {
        const auto head = unaligned_channels({args.input, output}, kChannels);
        const auto body = std::max<int64_t>(channels - head, 0) / kChannels * kChannels;
        if (body > 0) {
          const auto part = this->channels(head, body);
          masks.defined() ? part.template along_channels<W, kChannels, true>()
                          : part.template along_channels<W, kChannels, false>();
          for (const auto& [first, size] : {std::pair(int64_t(0), head), std::pair(head + body, channels - head - body)}) {
            if (size > 0) {
              this->channels(first, size).template one_channel<W>();
            }
          }
          return;
        }
      }
    }
    one_channel<W>();
  }

  void any_width() const {
    launch(forward_any_width<scalar_t>, output.numel(), output.numel(), contiguous_along(args.input, 2));
  }
};

template <typename scalar_t>
void forward(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  const Forward<scalar_t> call{args, output, final_state, last_positions(args, final_state), tap_masks(args)};
  with_width(args.weight.size(1), [&](auto width) {
    if constexpr (width == 0) {
      call.any_width();
    } else {
      call.template run<width>();
    }
  });
}

void causal_conv1d_kernel(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  const c10::cuda::CUDAGuard guard(args.input.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_cuda", [&] {
    forward<scalar_t>(args, output, final_state);
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_stub, &causal_conv1d_kernel)

} // namespace at::native
