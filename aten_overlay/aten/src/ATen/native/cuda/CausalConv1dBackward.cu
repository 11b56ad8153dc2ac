// causal_conv1d's backward pass on CUDA: all gradients in one pass over input and grad_output, and a small sum.
//
// With dz the gradient of the sums before SiLU, which are computed again, grad_input[s] = sum_k weight[k] *
// dz[s + W-1 - k] and grad_weight[k] = sum_t dz[t] * tap k. The plans are those of the forward pass. Rows: a warp goes
// from the end of its share to the beginning, so that the dz behind a vector are those that a neighbour has just
// computed. Columns: a thread computes the dz of W-1 positions behind its run itself.
// Weight and bias gradients leave each share as one partial sum; a second kernel adds those up in a fixed order, so
// that they are the same on every run.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dBackwardAnyRows.cuh>
#include <ATen/native/cuda/CausalConv1dBackwardColumns.cuh>
#include <ATen/native/cuda/CausalConv1dBackwardRows.cuh>

#include <ATen/Dispatch.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/zeros.h>
#endif

namespace at::native {

namespace {

// ---- Output by output ----------------------------------------------------------------------

// Through a tensor of all dz [B, D, T], once for dz and once each for what is computed from it.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
preactivation_grads(
    const __grid_constant__ BackwardParams<scalar_t> p, at::opmath_type<scalar_t>* dz, int64_t outputs) {
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p, blockIdx.x - p.blocks);
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
input_grads(const __grid_constant__ BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t inputs) {
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
parameter_grads(
    const __grid_constant__ BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t batch) {
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
  acc_t scale; // of the sums
};

constexpr int kRows = 8;

// One column of [units, (W+1) * D] a thread, in kRows interleaved parts.
template <typename acc_t, typename param_t>
__global__ void __launch_bounds__(kLanes* kRows, 8)
sum_partials(const acc_t* partials, int64_t units, int64_t channels, int64_t width, ParameterGrads<acc_t> grads) {
  __shared__ acc_t shared[kRows][kLanes];
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  const auto columns = (width + 1) * channels;
  const auto column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  acc_t sum = 0;
  wait_for_previous(); // which computed the partials
  if (column < columns) {
    constexpr int kAtOnce = 8;
    const auto* from = partials + row * columns + column;
    for (int64_t unit = row; unit < units; unit += kAtOnce * kRows) {
      Values<acc_t, kAtOnce> values;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        values[i] = unit + i * kRows < units ? *from : acc_t(0);
        from += kRows * columns;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum += values[i];
      }
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
  sum *= grads.scale;
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
  const CausalConv1dArgs& args;
  const Tensor& grad_output;
  const Tensor& grad_final_state;
  const CausalConv1dGrads& grads;
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
  int64_t width() const {
    return args.weight.size(1);
  }
  acc_t scale() const {
    return args.silu ? Silu<scalar_t>::kSlopeScale : acc_t(1);
  }
  bool by_output() const {
    return std::is_same_v<scalar_t, double> || width() > kMaxWidth;
  }

  // [units, W+1, D], or undefined if no parameter wants a gradient.
  Tensor empty_partials(int64_t units) const {
    return grads.weight.defined() || grads.bias.defined()
        ? at::empty(
              {units, width() + 1, channels()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value))
        : Tensor();
  }

  BackwardParams<scalar_t> params(const Tensor& partials, int64_t blocks) const {
    return {
        view<const scalar_t>(args.input),
        view<const scalar_t>(args.initial_state),
        view<const scalar_t>(grad_output),
        view<const scalar_t>(grad_final_state),
        view<scalar_t>(grads.input),
        view<scalar_t>(grads.initial_state),
        {args.weight, args.bias, scale()},
        Sequences(args, last),
        view_masks(args, masks),
        channels(),
        time(),
        width(),
        args.silu,
        partials.defined() ? partials.mutable_data_ptr<acc_t>() : nullptr,
        blocks};
  }

  // Of a place of grad_initial_state a thread.
  int64_t state_blocks() const {
    return grads.initial_state.defined() ? ceil_div(grads.initial_state.numel(), kThreads) : 0;
  }

  // `more`: blocks for grad_initial_state.
  template <typename Kernel, typename... Extra>
  void launch(
      Kernel kernel, bool overlap, int64_t more, const BackwardParams<scalar_t>& p, const Extra&... extra) const {
    if (p.blocks + more > 0) {
      launch_kernel(kernel, p.blocks + more, kThreads, overlap && are_found(masks), p, extra...);
    }
  }

  void reduce(const Tensor& partials) const {
    if (!partials.defined() || channels() == 0) {
      return;
    }
    const auto& weight = grads.weight;
    const auto& bias = grads.bias;
    const ParameterGrads<acc_t> to{
        weight.defined() ? weight.mutable_data_ptr() : nullptr,
        bias.defined() ? bias.mutable_data_ptr() : nullptr,
        weight.defined() ? weight.stride(0) : 0,
        weight.defined() ? weight.stride(1) : 0,
        bias.defined() ? bias.stride(0) : 0,
        scale()};
    const bool narrow = args.weight.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value;
    const auto kernel = narrow ? sum_partials<acc_t, scalar_t> : sum_partials<acc_t, acc_t>;
    const auto blocks = ceil_div((width() + 1) * channels(), kLanes);
    const auto* from = partials.const_data_ptr<acc_t>();
    launch_kernel(kernel, blocks, kLanes * kRows, true, from, partials.size(0), channels(), width(), to);
  }

  template <int W>
  void run() const {
    const auto contiguous_along_time = [](const Tensor& tensor) { return contiguous_along(tensor, 2); };
    const auto tensors = {args.input, grad_output, grads.input};
    if (time() >= Row<scalar_t>::kVec && std::all_of(tensors.begin(), tensors.end(), contiguous_along_time)) {
      run_rows<W>();
    } else {
      run_columns<W>(std::all_of(tensors.begin(), tensors.end(), aligned_columns));
    }
  }

  template <int W>
  void run_rows() const {
    using row_t = Row<scalar_t>;
    const auto rows_aligned = [](const Tensor& tensor) { return !tensor.defined() || aligned_rows(tensor); };
    const bool states = args.initial_state.defined() || grad_final_state.defined();
    const auto spans = row_spans<row_t>();
    const auto warps = batch() * channels() * ceil_div(time(), row_t::kSpan * spans);
    const auto border_blocks = RowBorders::blocks_of(batch(), channels(), time(), row_t::kSpan);
    const auto most_blocks = ceil_div(warps * kLanes, kThreads) + border_blocks;
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const bool whole = rows_aligned(grads.input) && rows_aligned(args.input) && rows_aligned(grad_output) &&
        time() % row_t::kVec == 0 && !(masks.defined() && states) && std::max(warps, most_blocks) <= kMost &&
        time() <= kMost / 2;
    if (!whole) {
      const bool aligned = masks.defined() || rows_aligned(grads.input);
      const RowChunks chunks(batch(), channels(), time(), row_t::kSpan, kSpans, aligned, row_t::kVec);
      const auto partials = empty_partials(batch() * chunks.per_row);
      const auto p = params(partials, ceil_div(chunks.warps * kLanes, kThreads));
      launch(backward_any_rows<scalar_t, W>, false, args.cu_seqlens.defined() ? state_blocks() : 0, p, chunks);
      reduce(partials);
      return;
    }
    const int rows = rows_of_warp<row_t>();
    const RowChunks chunks(batch() / rows, channels(), time(), row_t::kSpan, spans, true, row_t::kVec);
    const auto blocks = ceil_div(chunks.warps * kLanes, kThreads), units = batch() / rows * chunks.per_row;
    const bool any = masks.defined() || states;
    const RowBorders borders(any, batch(), channels(), time(), row_t::kSpan, blocks, units);
    const auto partials = empty_partials(units + batch() * borders.per_row);
    // Without borders, float32 takes so few registers that eight blocks fit on a multiprocessor, which was 9 % slower.
    constexpr bool kBordersAlways = std::is_same_v<scalar_t, float>;
    const auto kernel = any ? backward_rows<scalar_t, W, true> : backward_rows<scalar_t, W, kBordersAlways>;
    const auto p = params(partials, blocks + borders.blocks);
    launch(kernel, true, 0, p, chunks, RowSteps(p, rows), borders);
    reduce(partials);
  }

  // Rows of a warp: several of a channel where they are short, and yet many.
  template <typename row_t>
  int rows_of_warp() const {
    const auto warps = multiprocessors() * kRowBlocks * kWarps;
    const bool is_short = ceil_div(time(), row_t::kSpan) == RowSteps::kOfShort;
    for (int rows = is_short ? RowSteps::kMostRows : 1; rows > 1; rows /= 2) {
      if (batch() % rows == 0 && batch() * channels() >= 3 * rows * warps) {
        return rows;
      }
    }
    return 1;
  }

  // Spans of a chunk: a whole row, unless it is long or there are too few rows to keep all multiprocessors busy.
  template <typename row_t>
  int row_spans() const {
    const int64_t warps = multiprocessors() * kRowBlocks * kWarps;
    const auto pieces = std::max<int64_t>(2 * warps / std::max<int64_t>(batch() * channels(), 1), 1);
    const auto spans = ceil_div(time(), row_t::kSpan);
    return std::clamp<int64_t>(ceil_div(spans, pieces), 2, kLongSpans);
  }

  static int64_t multiprocessors() {
    return device_attribute(cudaDevAttrMultiProcessorCount);
  }

  template <int W>
  void run_columns(bool aligned) const {
    const auto groups = ceil_div(channels(), kLanes * kChannels<scalar_t>);
    const auto at_once = multiprocessors() * kColumnBlocks / std::max<int64_t>(groups, 1);
    const Runs runs(batch(), groups, time(), std::max<int64_t>(at_once, 1));
    const auto partials = empty_partials(runs.per_group);
    const auto kernel = aligned ? backward_columns<scalar_t, W, true> : backward_columns<scalar_t, W, false>;
    const bool by_row = grads.initial_state.defined() && !args.cu_seqlens.defined();
    const auto more = by_row ? ceil_div(batch() * groups, kWarps) : state_blocks();
    launch(kernel, true, more, params(partials, runs.count), runs);
    reduce(partials);
  }

  void run_by_output() const {
    const Tensor dz = at::empty(
        {batch(), channels(), time()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    const auto partials = empty_partials(1);
    const auto p = params(partials, ceil_div(dz.numel(), kThreads));
    auto* data = dz.mutable_data_ptr<acc_t>();
    launch(preactivation_grads<scalar_t>, false, state_blocks(), p, data, dz.numel());
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (grads.input.defined() && dz.numel() > 0) {
      input_grads<scalar_t><<<p.blocks, kThreads, 0, stream>>>(p, data, dz.numel());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    if (partials.defined() && channels() > 0) {
      parameter_grads<scalar_t><<<channels() * (p.width + 1), kThreads, 0, stream>>>(p, data, batch());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      reduce(partials);
    }
  }
};

template <typename scalar_t>
void backward(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  // Without a gradient of the output, as where the final state alone is used, it is 0.
  const auto grad = grad_output.defined() ? grad_output : at::zeros({1}, args.input.options()).expand_as(args.input);
  const Backward<scalar_t> call{
      args, grad, grad_final_state, grads, last_positions(args, grad_final_state), tap_masks(args)};
  if constexpr (!std::is_same_v<scalar_t, double>) {
    if (!call.by_output()) {
      with_width(args.weight.size(1), [&](auto width) { call.template run<width>(); });
      return;
    }
  }
  call.run_by_output();
}

void causal_conv1d_backward_kernel(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  const c10::cuda::CUDAGuard guard(args.input.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_backward_cuda", [&] {
    backward<scalar_t>(args, grad_output, grad_final_state, grads);
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_backward_stub, &causal_conv1d_backward_kernel)

} // namespace at::native
