// What the kernels of causal_conv1d's backward pass share: their parameters, and the gradients of states.
#pragma once

#include <ATen/native/cuda/CausalConv1dSequences.cuh>

namespace at::native {

namespace {

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
  acc_t* partials; // [units, W+1, channels]: sums for the taps, then the bias; or null
  int64_t blocks; // beside these there are blocks that compute grad_initial_state, where the others do not

  __device__ acc_t* partial(int64_t unit, int64_t k, int64_t d) const {
    return partials + (unit * (width + 1) + k) * channels + d;
  }
};

// dz at one position, as everywhere divided by the scale of the parameters: multiplied with a weight it is right, and
// the sums for the parameters are multiplied at the end.
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
  return Silu<scalar_t>::times_slope(
      grad, source.preactivation(p.sequences, segment, p.parameters, b, d, p.width, t));
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

// The gradient of the initial state, a place a thread; `block` counts the blocks that do this.
template <typename scalar_t>
__device__ __noinline__ void write_initial_state_grads(const BackwardParams<scalar_t>& p, int64_t block) {
  const auto places = p.width - 1;
  const auto i = block * blockDim.x + threadIdx.x;
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

// Writes the sums of a block's warps for the same kSize channels a lane, added up in order.
template <int W, typename scalar_t, typename acc_t, int kSize>
__device__ void write_partials(
    const BackwardParams<scalar_t>& p, int64_t unit, int64_t d, const Values<Values<acc_t, kSize>, W + 1>& sums) {
  __shared__ acc_t shared[kWarps - 1][W + 1][kSize][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
#pragma unroll
  for (int k = 0; k <= W; ++k) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      if (warp > 0) {
        shared[warp - 1][k][c][lane] = sums[k][c];
      }
    }
  }
  __syncthreads();
  if (warp > 0) {
    return;
  }
#pragma unroll
  for (int k = 0; k <= W; ++k) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      auto sum = sums[k][c];
#pragma unroll
      for (int other = 0; other < kWarps - 1; ++other) {
        sum += shared[other][k][c][lane];
      }
      if (d + c < p.channels) {
        *p.partial(unit, k, d + c) = sum;
      }
    }
  }
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

} // namespace

} // namespace at::native
