// causal_conv1d's forward pass on CUDA, final state included, in one launch.
//
// Two plans, by the dimension whose elements lie next to each other. Rows: a warp takes some spans of one row of
// positions, a vector a lane; the W-1 inputs before a vector come from the lanes before.
// Columns: a thread takes a few channels through a stretch of time, with the last W inputs in registers; it reads
// an element at a time where channels do not lie next to each other, so it serves all other strides too.
// What is W > 8 or float64 is computed output by output. All plans give each output the same operations in the same
// order, so layouts, chunks and slices agree to the bit.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dColumns.cuh>
#include <ATen/native/cuda/CausalConv1dRows.cuh>

#include <ATen/Dispatch.h>

namespace at::native {

namespace {

// Rows: the most spans of a warp of forward_any_rows, those of one of forward_rows, and its blocks of a multiprocessor.
template <typename scalar_t>
constexpr int kSpans = sizeof(scalar_t) == 2 ? 8 : 32;
constexpr int kChunk = 4;
constexpr int kBlocks = 8;
// Columns: positions on their way, and those of a stretch.
constexpr int kAlignedSteps = 8;
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
__device__ __noinline__ void write_final_state(const ForwardParams<scalar_t>& p) {
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

// ---- Rows ----------------------------------------------------------------------------------

// One warp's share of a row.
template <typename scalar_t>
struct RowShare {
  int64_t b, d;
  int64_t begin; // its first position
  Row<scalar_t> x;
  scalar_t* out;
};

// The spans `which` of a share (a bit each): those that the row's ends cut or that are not aligned. Called, not
// inlined, when nothing else is left to do: what it keeps in registers is no one's loss.
template <typename scalar_t, int W>
__device__ __noinline__ void forward_masked_spans(
    const ForwardParams<scalar_t>& p, const RowShare<scalar_t>& share, uint64_t which) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kVec = Row<scalar_t>::kVec;
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(share.d, weight, bias);
#pragma unroll 1
  for (; which != 0; which &= which - 1) {
    const auto t = share.begin + ((__ffsll(which) - 1) * kLanes + threadIdx.x % kLanes) * kVec;
    Window<scalar_t, W> window;
    window.load(share.x, t);
    const auto masks = p.masks.data ? p.masks.template load<kVec>(share.b, t) : every_mask<W, kVec>();
    auto y = masked_sums<scalar_t, W>(masks, weight, bias, window.widen());
    see_states<scalar_t, W>(p, share.b, share.d, t, y);
    if (p.silu) {
      y = Silu<scalar_t>::silu(y);
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      y[j] = masks.bits(j) ? y[j] : acc_t(0);
    }
    store_masked(share.out, p.time, t, narrow<scalar_t>(y));
  }
}

// Rows that consist of aligned vectors, kCount spans a warp, all on their way at once. kPacked: they are divided,
// without states of cu_seqlens.
template <typename scalar_t, int W, bool kPacked, int kCount>
__global__ void __launch_bounds__(kThreads, W <= 4 ? kBlocks : kBlocks - 2)
forward_rows(const __grid_constant__ ForwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using row_t = Row<scalar_t>;
  constexpr int kVec = row_t::kVec;
  constexpr int kSpan = row_t::kSpan;
  if (kPacked && blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  int64_t b, d, chunk;
  if (!chunks.find<int64_t>(blockIdx.x, b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const auto begin = chunk * (kCount * kSpan), first = begin + lane * kVec;
  const auto* from = p.input.at(b, d, first);
  auto* to = p.output.at(b, d, first);
  settle(from);
  settle(to);
  const int left = min(p.time - first, int64_t(kCount * kSpan)); // positions from the lane's first on
  typename row_t::vector_t vectors[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i * kSpan < left) {
      vectors[i] = load_vector<scalar_t, kVec>(from + i * kSpan);
    }
  }
  unsigned straight[kCount]; // which vectors see all their taps
  if (kPacked) {
    wait_for_previous(); // which found the masks
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      straight[i] = p.masks.template straight_lanes<kVec>(b, begin / kSpan + i);
    }
  }
  Preceding<scalar_t, W> preceding(from - lane * kVec, begin, p.initial_state, b, d);
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  Vector<uint8_t, kVec> masks[kCount];
  if (kPacked) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(straight[i] >> lane & 1)) {
        masks[i] = p.masks.template load<kVec>(b, first + i * kSpan);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const auto inputs = preceding.window(vectors[i]).widen();
    if (i * kSpan >= left) {
      continue;
    }
    const bool masked = kPacked && !(straight[i] >> lane & 1);
    Values<acc_t, kVec> y;
    if (masked) {
      y = masked_sums<scalar_t, W>(masks[i], weight, bias, inputs);
    } else {
      y = sum_inputs<W>(weight, bias, inputs);
    }
    if (p.silu) {
      y = Silu<scalar_t>::silu(y);
    }
    if (masked) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        y[j] = masks[i].bits(j) ? y[j] : acc_t(0);
      }
    }
    store_vector(to + i * kSpan, narrow<scalar_t>(y));
    if (!kPacked && p.final_state.data && first + i * kSpan + kVec == p.time) {
#pragma unroll
      for (int k = 0; k < W - 1; ++k) {
        *p.final_state.at(b, d, k) = static_cast<scalar_t>(inputs[kVec + k]); // exactly what was read
      }
    }
  }
}

// All other rows.
template <typename scalar_t, int W>
__global__ void __launch_bounds__(kThreads, 5)
forward_any_rows(const __grid_constant__ ForwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using mask_t = Vector<uint8_t, Row<scalar_t>::kVec>;
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kAhead = 2;
  if (blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  int64_t b, d, chunk;
  if (!chunks.find<int64_t>(blockIdx.x, b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const bool packed = p.masks.data;

  // Vectors are aligned in the output; beside masks, in the row.
  const auto* data = p.input.at(b, d, 0);
  auto* out = p.output.at(b, d, 0);
  const int phase = packed ? 0 : reinterpret_cast<uintptr_t>(out) / sizeof(scalar_t) % kVec;
  Row<scalar_t> x(data, p.time, phase);
  if (p.initial_state.data && !p.sequences.cu_seqlens.data) {
    x.set_state(p.initial_state.at(b, d, 0), p.initial_state.time, W);
  }
  const auto begin = chunk * chunks.spans * kSpan - phase;
  const int count = min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan));
  if (count <= 0) {
    return;
  }
  int low, high;
  x.straight_spans(begin, count, low, high);
  if (reinterpret_cast<uintptr_t>(out - phase) % 16 != 0) {
    high = 0;
  }

  // The straight way: whole vectors, several spans of them on their way.
  const auto first = begin + lane * kVec;
  const auto* from = data + first;
  auto* to = out + first;
  settle(from);
  settle(to);
  const int left = min(p.time - first, int64_t(high) * kSpan); // what is straight, from the lane's first on
  const int floor = chunk == 0 ? -static_cast<int>(first) : -kSpan; // the start of the row, or before
  Window<scalar_t, W> windows[kAhead];
  mask_t masks[kAhead]; // if packed
  const auto fetch = [&](int slot, int span) {
    if (span * kSpan < left) {
      windows[slot].load(from, span * kSpan, floor);
      if (packed) {
        masks[slot] = p.masks.template load<kVec>(b, first + span * kSpan);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    fetch(i, low + i);
  }
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
#pragma unroll 1
  for (int start = low; start < high; start += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int span = start + i;
      auto inputs = windows[i].widen();
      settle(inputs);
      const auto mask = masks[i];
      fetch(i, span + kAhead);
      if (span * kSpan >= left) {
        continue;
      }
      if (chunk == 0 && span == 0) {
        see_row_start<scalar_t, W>(x, lane, inputs);
      }
      Values<acc_t, kVec> y;
      const bool masked = packed && !every_tap<W>(mask);
      if (masked) {
        y = masked_sums<scalar_t, W>(mask, weight, bias, inputs);
        see_states<scalar_t, W>(p, b, d, first + span * kSpan, y);
      } else {
        y = sum_inputs<W>(weight, bias, inputs);
      }
      if (p.silu) {
        y = Silu<scalar_t>::silu(y);
      }
      if (masked) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          y[j] = mask.bits(j) ? y[j] : acc_t(0);
        }
      }
      store_vector(to + span * kSpan, narrow<scalar_t>(y));
    }
  }

  if (!packed && p.final_state.data && begin + count * kSpan >= p.time && lane < W - 1) {
    const auto s = p.time - (W - 1) + lane;
    *p.final_state.at(b, d, lane) = s >= 0 ? load_element(data + s)
        : p.initial_state.data             ? load_element(p.initial_state.at(b, d, W - 1 + s))
                                           : scalar_t(0);
  }
  const uint64_t straight = low < high ? (uint64_t(1) << high) - (uint64_t(1) << low) : 0;
  const auto ragged = ((uint64_t(1) << count) - 1) & ~straight;
  if (ragged != 0) {
    forward_masked_spans<scalar_t, W>(p, {b, d, begin, x, out}, ragged);
  }
}

// ---- Columns -------------------------------------------------------------------------------

// kPlain: rows are not divided, and the channels are aligned.
template <typename scalar_t, int W, bool kAligned, bool kPlain>
__global__ void __launch_bounds__(kThreads, kPlain ? 6 : 4)
forward_columns(const __grid_constant__ ForwardParams<scalar_t> p, const __grid_constant__ Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kSize = kChannels<scalar_t>;
  using vector_t = Vector<scalar_t, kSize>;
  constexpr int kSteps = kAligned ? kAlignedSteps : 1; // positions on their way
  if (blockIdx.x >= p.blocks) {
    write_final_state(p);
    return;
  }
  const auto thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= stretches.count) {
    return;
  }
  int64_t unit, b, stretch, group;
  stretches.find(thread, unit, b, stretch, group);
  const auto d = group * kSize;
  const auto begin = stretch * stretches.steps;
  const int size = min(p.time - begin, stretches.steps);
  const Column<const scalar_t, kAligned> x(p.input, b, d, p.channels, begin);
  auto next = x;
  Column<scalar_t, kAligned> out(p.output, b, d, p.channels, begin);
  const bool packed = !kPlain && p.masks.data, segments = !kPlain && p.sequences.cu_seqlens.data;

  vector_t ahead[kSteps];
  const auto fetch = [&](int slot, int i) {
    if (i < size) {
      ahead[slot] = next.load_next();
    }
  };
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    fetch(j, j);
  }
  auto taps = preceding_taps<W>(x.at(1 - W), begin);
  const ColumnParameters<scalar_t, W, kAligned> parameters(p.parameters, d, p.channels);
  if (!kPlain) {
    wait_for_previous(); // which found the masks
  }
  if (segments || (begin == 0 && p.initial_state.data)) {
    see_state(p, b, d, begin, taps);
  }
  const auto write = [&](Values<acc_t, kSize> y) {
    if (p.silu) {
      y = Silu<scalar_t>::silu(y);
    }
    out.store_next(narrow<scalar_t>(y));
  };
#pragma unroll 1
  for (int start = 0; start < size; start += kSteps) {
    if (start + kSteps <= size && (!packed || every_tap<W>(p.masks.template load<kSteps>(b, begin + start)))) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        push(taps, ahead[j]);
        fetch(j, start + kSteps + j);
        write(sum_taps(parameters, taps));
      }
      continue;
    }
    if (kPlain) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        if (start + j < size) {
          push(taps, ahead[j]);
          write(sum_taps(parameters, taps));
        }
      }
      break;
    }
    // Some taps do not count, or the row ends: a position at a time, read again.
    auto again = x.at(start);
#pragma unroll 1
    for (int i = start; i < min(start + kSteps, size); ++i) {
      const unsigned mask = packed ? p.masks.load(b, begin + i) : every_mask<W, 1>().words[0];
      if (segments && begins_segment<W>(mask)) {
        see_state(p, b, d, begin + i, taps);
      }
      push(taps, again.load_next());
      const auto y = sum_taps(parameters, segments ? taps : mask_taps(mask, taps));
      write(mask == 0 ? Values<acc_t, kSize>{} : y);
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      fetch(j, start + kSteps + j);
    }
  }

  if (!packed && p.final_state.data && begin + size == p.time) {
#pragma unroll
    for (int k = 1; k < W; ++k) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (c < x.size) {
          *p.final_state.at(b, d + c, k - 1) = static_cast<scalar_t>(taps[k][c]);
        }
      }
    }
  }
}

// ---- Output by output ----------------------------------------------------------------------

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
forward_outputs(const __grid_constant__ ForwardParams<scalar_t> p, int64_t outputs, bool along_time) {
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
  at::opmath_type<scalar_t> y = 0;
  if (p.sequences.counts(b, t, t)) {
    y = source.preactivation(p.sequences, p.sequences.find(b, t), p.parameters, b, d, p.width, t);
    y = p.silu ? Silu<scalar_t>::silu(y) : y;
  }
  *p.output.at(b, d, t) = static_cast<scalar_t>(y);
}

// ---- Launch --------------------------------------------------------------------------------

template <typename scalar_t>
struct Forward {
  const CausalConv1dArgs& args;
  const Tensor& output;
  const Tensor& final_state;
  Tensor last; // of Sequences
  Tensor masks;

  template <typename Kernel, typename... Extra>
  void launch(Kernel kernel, bool overlap, int64_t threads, const Extra&... extra) const {
    const ForwardParams<scalar_t> p{
        view<const scalar_t>(args.input),
        view<const scalar_t>(args.initial_state),
        view<scalar_t>(output),
        view<scalar_t>(final_state),
        {args.weight, args.bias, args.silu ? Silu<scalar_t>::kScale : at::opmath_type<scalar_t>(1)},
        Sequences(args, last),
        view_masks(args, masks),
        args.input.size(1),
        args.input.size(2),
        args.weight.size(1),
        args.silu,
        ceil_div(threads, kThreads)};
    const bool apart = final_state.defined() && (masks.defined() || by_output() || p.time == 0);
    const auto blocks = p.blocks + (apart ? ceil_div(final_state.numel(), kThreads) : 0);
    if (blocks > 0) {
      launch_kernel(kernel, blocks, kThreads, overlap && are_found(masks), p, extra...);
    }
  }

  bool by_output() const {
    return std::is_same_v<scalar_t, double> || args.weight.size(1) > kMaxWidth;
  }

  void run_by_output() const {
    launch(forward_outputs<scalar_t>, false, output.numel(), output.numel(), contiguous_along(args.input, 2));
  }

  // Rows of aligned vectors.
  template <int W, int kCount>
  void run_rows() const {
    const auto& x = args.input;
    const RowChunks chunks(
        x.size(0), x.size(1), x.size(2), Row<scalar_t>::kSpan, kCount, true, Row<scalar_t>::kVec);
    launch(
        masks.defined() ? forward_rows<scalar_t, W, true, kCount> : forward_rows<scalar_t, W, false, kCount>,
        true,
        chunks.warps * kLanes,
        chunks);
  }

  template <int W>
  void run() const {
    using row_t = Row<scalar_t>;
    const auto batch = args.input.size(0), channels = args.input.size(1), time = args.input.size(2);
    if (time >= row_t::kVec && contiguous_along(args.input, 2) && contiguous_along(output, 2)) {
      if (aligned_rows(output) && aligned_rows(args.input) && time % row_t::kVec == 0 &&
          !(args.cu_seqlens.defined() && args.initial_state.defined())) {
        return time <= 2 * row_t::kSpan ? run_rows<W, 2>() : run_rows<W, kChunk>();
      }
      const bool aligned = masks.defined() || aligned_rows(output);
      const RowChunks chunks(batch, channels, time, row_t::kSpan, kSpans<scalar_t>, aligned, row_t::kVec);
      launch(forward_any_rows<scalar_t, W>, false, chunks.warps * kLanes, chunks);
    } else {
      const Stretches stretches(batch, ceil_div(channels, kChannels<scalar_t>), time, kStretch);
      const bool aligned = aligned_columns(args.input) && aligned_columns(output);
      launch(
          !aligned              ? forward_columns<scalar_t, W, false, false>
              : masks.defined() ? forward_columns<scalar_t, W, true, false>
                                : forward_columns<scalar_t, W, true, true>,
          true,
          stretches.count,
          stretches);
    }
  }
};

template <typename scalar_t>
void forward(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  const Forward<scalar_t> call{args, output, final_state, last_positions(args, final_state), tap_masks(args)};
  if constexpr (!std::is_same_v<scalar_t, double>) {
    if (!call.by_output()) {
      with_width(args.weight.size(1), [&](auto width) { call.template run<width>(); });
      return;
    }
  }
  call.run_by_output();
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
