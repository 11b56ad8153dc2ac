// causal_conv1d_update on CUDA, in one launch. A thread takes one channel of one row through the new positions; it
// alone reads and writes that channel's state, and reads all it needs before it writes. The usual step - one position,
// a state of W-1 places that is shifted, everything dense - takes a few channels at once.
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

// Channels of a thread of update_dense.
template <typename scalar_t>
constexpr int kVectorSize = sizeof(scalar_t) == 8 ? 2 : 4;

template <typename scalar_t, int W>
__global__ void __launch_bounds__(kThreads) update_dense(const __grid_constant__ UpdateParams<scalar_t> p) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kChannels = kVectorSize<scalar_t>;
  constexpr int kPlaces = W - 1;
  using vector_t = Vector<scalar_t, kChannels>;
  const auto blocks = static_cast<unsigned>(ceil_div(p.channels, kThreads * kChannels));
  const int64_t b = blockIdx.x / blocks;
  const int64_t d = (blockIdx.x % blocks * kThreads + threadIdx.x) * kChannels;
  if (d >= p.channels) {
    return;
  }
  auto* out = p.output.at(b, d, 0);
  const auto row = min(p.state_indices.data ? p.state_indices.at(0, b) : b, p.states - 1);
  if (row < 0) {
    store_vector(out, vector_t{});
    return;
  }
  Values<acc_t, kChannels * W> weight;
  Values<acc_t, kChannels> y;
  p.parameters.template load_dense<W>(d, weight, y);
  const auto input = load_vector<scalar_t, kChannels>(p.input.at(b, d, 0));
  auto* state = reinterpret_cast<vector_t*>(p.state.at(row, d, 0));
  vector_t places[kPlaces]; // [channel][place]
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) {
    places[i] = state[i];
  }
  Values<acc_t, kChannels * kPlaces> shifted;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const int place = c * kPlaces + k;
      const auto tap = k < kPlaces ? places[place / kChannels].widen(place % kChannels) : input.widen(c);
      y[c] = multiply_add(weight[c * W + k], tap, y[c]);
      if (k > 0) {
        shifted[place - 1] = tap;
      }
    }
  }
  if (p.silu) {
    y = Silu<scalar_t>::silu(y);
  }
  store_vector(out, narrow<scalar_t>(y));
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) {
    Values<acc_t, kChannels> part;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      part[c] = shifted[i * kChannels + c];
    }
    state[i] = narrow<scalar_t>(part); // exactly what was read
  }
}

// kWidth is W where it is known at compile time, else 0.
template <typename scalar_t, int kWidth>
__global__ void __launch_bounds__(kThreads) update(const __grid_constant__ UpdateParams<scalar_t> p) {
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

// Whether all a thread of update_dense reads and writes lies in whole vectors.
template <typename scalar_t>
bool is_dense(const CausalConv1dUpdateArgs& args, const Tensor& output, const Parameters<scalar_t>& parameters) {
  constexpr int kChannels = kVectorSize<scalar_t>;
  const auto vectors = [](const Tensor& tensor, int64_t channel) {
    const auto bytes = kChannels * sizeof(scalar_t);
    return tensor.stride(1) == channel && (tensor.size(0) == 1 || tensor.stride(0) % kChannels == 0) &&
        reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
  };
  const auto places = args.state.size(2);
  return !args.cache_seqlens.defined() && args.input.size(2) == 1 && args.input.size(1) % kChannels == 0 &&
      places == args.weight.size(1) - 1 && parameters.dense && vectors(args.input, 1) && vectors(output, 1) &&
      vectors(args.state, places) && (places == 1 || args.state.stride(2) == 1);
}

template <typename scalar_t>
void launch(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  const Parameters<scalar_t> parameters(
      args.weight, args.bias, args.silu ? Silu<scalar_t>::kScale : at::opmath_type<scalar_t>(1));
  const UpdateParams<scalar_t> p{
      view<const scalar_t>(args.input),
      view<scalar_t>(args.state),
      view<scalar_t>(output),
      parameters,
      Indices(args.state_indices),
      Indices(args.cache_seqlens),
      args.input.size(1),
      args.input.size(2),
      args.weight.size(1),
      args.state.size(0),
      args.state.size(2),
      args.silu};
  const auto run = [&](auto kernel, int64_t channels) {
    const auto blocks = args.input.size(0) * ceil_div(p.channels, kThreads * channels);
    if (blocks > 0) {
      kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(p);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  };
  const bool dense = output.numel() > 0 && is_dense(args, output, parameters);
  switch (p.width) {
    case 2:
      return dense ? run(update_dense<scalar_t, 2>, kVectorSize<scalar_t>) : run(update<scalar_t, 2>, 1);
    case 3:
      return dense ? run(update_dense<scalar_t, 3>, kVectorSize<scalar_t>) : run(update<scalar_t, 3>, 1);
    case 4:
      return dense ? run(update_dense<scalar_t, 4>, kVectorSize<scalar_t>) : run(update<scalar_t, 4>, 1);
    default:
      return run(update<scalar_t, 0>, 1);
  }
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
