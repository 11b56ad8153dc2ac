// causal_conv1d_update on CUDA: a thread takes one channel of one row through the new positions.
// It alone reads and writes that channel's state, and reads all it needs before it writes.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dUtils.cuh>

#include <ATen/Dispatch.h>

namespace at::native {

namespace {

template <typename scalar_t>
struct UpdateParams {
  View<const scalar_t> input;
  View<scalar_t> state;
  View<scalar_t> output;
  Parameters<scalar_t> parameters;
  Indices state_indices;
  Indices cache_seqlens;
  int64_t channels;
  int64_t time;
  int64_t width;
  int64_t states; // S
  int64_t places; // L
  bool silu;
};

// The place of the input that came `back` positions before the call, or -1 if there was none.
// Places of a ring are counted modulo L; `before` is clamped so that no sum overflows.
template <typename scalar_t>
__device__ int64_t place_before(const UpdateParams<scalar_t>& p, int64_t before, int64_t back) {
  if (!p.cache_seqlens.data) {
    return p.places - back;
  }
  return back > before ? -1 : (before - back) % p.places;
}

// kWidth is W where it is known at compile time, else 0.
template <typename scalar_t, int kWidth>
__global__ void __launch_bounds__(kThreads) update(const UpdateParams<scalar_t> p) {
  using acc_t = at::opmath_type<scalar_t>;
  const auto blocks = static_cast<unsigned>(ceil_div(p.channels, kThreads));
  const int64_t b = blockIdx.x / blocks, d = blockIdx.x % blocks * kThreads + threadIdx.x;
  if (d >= p.channels) {
    return;
  }
  const int64_t width = kWidth ? kWidth : p.width;
  auto row = p.state_indices.data ? p.state_indices.at(0, b) : b;
  row = min(row, p.states - 1);
  if (row < 0) {
    for (int64_t t = 0; t < p.time; ++t) {
      *p.output.at(b, d, t) = 0;
    }
    return;
  }
  const bool ring = p.cache_seqlens.data;
  const auto before =
      ring ? min(max(p.cache_seqlens.at(0, b), int64_t(0)), std::numeric_limits<int64_t>::max() - p.time) : 0;
  auto* state = p.state.at(row, d, 0);
  const auto past = [&](int64_t back) {
    const auto place = place_before(p, before, back);
    return place < 0 ? acc_t(0) : static_cast<acc_t>(state[place * p.state.time]);
  };

  const auto bias = p.parameters.offset(d);
  if constexpr (kWidth != 0) {
    acc_t weight[kWidth], inputs[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      weight[k] = p.parameters.tap(d, k);
    }
#pragma unroll
    for (int k = 1; k < kWidth; ++k) {
      inputs[k] = past(kWidth - k);
    }
    for (int64_t t = 0; t < p.time; ++t) {
#pragma unroll
      for (int k = 0; k < kWidth - 1; ++k) {
        inputs[k] = inputs[k + 1];
      }
      inputs[kWidth - 1] = static_cast<acc_t>(load_element(p.input.at(b, d, t)));
      auto y = bias;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        y = multiply_add(weight[k], inputs[k], y);
      }
      *p.output.at(b, d, t) = static_cast<scalar_t>(p.silu ? Silu<scalar_t>::silu(y) : y);
    }
    if (!ring && p.places == kWidth - 1 && p.time > 0) {
      // The new state is what the next output would see.
#pragma unroll
      for (int k = 1; k < kWidth; ++k) {
        state[(k - 1) * p.state.time] = static_cast<scalar_t>(inputs[k]);
      }
      return;
    }
  } else {
    for (int64_t t = 0; t < p.time; ++t) {
      auto y = bias;
      for (int64_t k = 0; k < width; ++k) {
        const auto s = t + k - (width - 1);
        const auto tap = s < 0 ? past(-s) : static_cast<acc_t>(*p.input.at(b, d, s));
        y = multiply_add(p.parameters.tap(d, k), tap, y);
      }
      *p.output.at(b, d, t) = static_cast<scalar_t>(p.silu ? Silu<scalar_t>::silu(y) : y);
    }
  }

  if (ring) {
    for (auto t = max(p.time - p.places, int64_t(0)); t < p.time; ++t) {
      state[(before + t) % p.places * p.state.time] = *p.input.at(b, d, t);
    }
  } else {
    for (int64_t j = 0; j < p.places; ++j) {
      const auto from = j + p.time;
      state[j * p.state.time] = from < p.places ? state[from * p.state.time] : *p.input.at(b, d, from - p.places);
    }
  }
}

template <typename scalar_t>
void launch(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  const UpdateParams<scalar_t> p{
      view<const scalar_t>(args.input),
      view<scalar_t>(args.state),
      view<scalar_t>(output),
      {args.weight, args.bias},
      Indices(args.state_indices),
      Indices(args.cache_seqlens),
      args.input.size(1),
      args.input.size(2),
      args.weight.size(1),
      args.state.size(0),
      args.state.size(2),
      args.silu};
  const auto blocks = args.input.size(0) * ceil_div(p.channels, kThreads);
  if (blocks == 0) {
    return;
  }
  const auto kernel = [&] {
    switch (p.width) {
      case 2:
        return update<scalar_t, 2>;
      case 3:
        return update<scalar_t, 3>;
      case 4:
        return update<scalar_t, 4>;
      default:
        return update<scalar_t, 0>;
    }
  }();
  kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(p);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void causal_conv1d_update_kernel(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  const c10::cuda::CUDAGuard guard(args.input.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_update_cuda", [&] {
    launch<scalar_t>(args, output);
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_update_stub, &causal_conv1d_update_kernel)

} // namespace at::native
