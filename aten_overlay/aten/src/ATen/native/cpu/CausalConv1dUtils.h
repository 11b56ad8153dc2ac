// What the CPU kernels of causal_conv1d and causal_conv1d_update read their tensors through.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/irange.h>

#include <cstring>

namespace at::native {

// Compiled once for each CPU capability.
inline namespace CPU_CAPABILITY {

template <typename acc_t>
vec::Vectorized<acc_t> sigmoid(const vec::Vectorized<acc_t>& z) {
  return vec::Vectorized<acc_t>(1) / (vec::Vectorized<acc_t>(1) + z.neg().exp());
}

// SiLU, spelled so that +-infinity and NaN go through as in torch.nn.functional.silu.
template <typename acc_t>
vec::Vectorized<acc_t> silu(const vec::Vectorized<acc_t>& z) {
  return z / (vec::Vectorized<acc_t>(1) + z.neg().exp());
}

template <typename scalar_t, typename acc_t>
void widen(const scalar_t* src, acc_t* dst, int64_t size) {
  if constexpr (std::is_same_v<scalar_t, acc_t>) {
    std::memcpy(dst, src, size * sizeof(acc_t));
  } else {
    using Vec = vec::Vectorized<scalar_t>;
    int64_t i = 0;
    for (; i + Vec::size() <= size; i += Vec::size()) {
      const auto [low, high] = vec::convert_to_float<scalar_t>(Vec::loadu(src + i));
      low.store(dst + i);
      high.store(dst + i + vec::Vectorized<float>::size());
    }
    for (; i < size; ++i) {
      dst[i] = src[i];
    }
  }
}

// Where they are, if they may be read there (`whole`) and need no conversion; else widened into scratch.
template <typename scalar_t, typename acc_t>
const acc_t* widened(const scalar_t* src, int64_t size, acc_t* scratch, bool whole) {
  if constexpr (std::is_same_v<scalar_t, acc_t>) {
    if (whole) {
      return src;
    }
  }
  widen(src, scratch, size);
  return scratch;
}

template <typename scalar_t, typename acc_t>
void narrow(const acc_t* src, scalar_t* dst, int64_t size) {
  if constexpr (std::is_same_v<scalar_t, acc_t>) {
    std::memcpy(dst, src, size * sizeof(acc_t));
  } else {
    using Vec = vec::Vectorized<scalar_t>;
    int64_t i = 0;
    for (; i + Vec::size() <= size; i += Vec::size()) {
      const auto low = vec::Vectorized<float>::loadu(src + i);
      const auto high = vec::Vectorized<float>::loadu(src + i + vec::Vectorized<float>::size());
      vec::convert_from_float<scalar_t>(low, high).store(dst + i);
    }
    for (; i < size; ++i) {
      dst[i] = static_cast<scalar_t>(src[i]);
    }
  }
}

// The [D, T] plane of one batch row (or the [D, W-1] of one state): a pointer and two strides.
template <typename scalar_t>
struct Plane {
  scalar_t* data = nullptr;
  int64_t channel_stride = 0;
  int64_t time_stride = 0;

  scalar_t* at(int64_t channel, int64_t time) const {
    return data + channel * channel_stride + time * time_stride;
  }
};

template <typename scalar_t>
Plane<scalar_t> plane(const Tensor& tensor, int64_t row) {
  if (!tensor.defined()) {
    return {};
  }
  auto* data = [&] {
    if constexpr (std::is_const_v<scalar_t>) {
      return tensor.const_data_ptr<std::remove_const_t<scalar_t>>();
    } else {
      return tensor.data_ptr<scalar_t>();
    }
  }();
  return {data + row * tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// A parameter tensor ([D, W] or [D]) of either floating type, read as acc_t.
template <typename scalar_t, typename acc_t>
class Parameter {
 public:
  explicit Parameter(const Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    data_ = tensor.const_data_ptr();
    narrow_ = tensor.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value;
    channel_stride_ = tensor.stride(0);
    tap_stride_ = tensor.dim() == 2 ? tensor.stride(1) : 0;
  }

  acc_t get(int64_t channel, int64_t tap = 0) const {
    if (data_ == nullptr) {
      return 0;
    }
    const auto offset = channel * channel_stride_ + tap * tap_stride_;
    return narrow_ ? static_cast<acc_t>(static_cast<const scalar_t*>(data_)[offset])
                   : static_cast<const acc_t*>(data_)[offset];
  }

  // All taps of `channels` neighbouring channels, [channels, taps]: null unless they lie densely in memory.
  const acc_t* dense(int64_t channel, int64_t channels, int64_t taps, acc_t* scratch, bool whole) const {
    if (data_ == nullptr || channel_stride_ != taps || (taps > 1 && tap_stride_ != 1)) {
      return nullptr;
    }
    return narrow_ ? widened(static_cast<const scalar_t*>(data_) + channel * taps, channels * taps, scratch, whole)
                   : widened(static_cast<const acc_t*>(data_) + channel * taps, channels * taps, scratch, whole);
  }

 private:
  const void* data_ = nullptr;
  bool narrow_ = false;
  int64_t channel_stride_ = 0;
  int64_t tap_stride_ = 0;
};

// An index tensor of either integer type, read as int64.
class Indices {
 public:
  explicit Indices(const Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    data_ = tensor.const_data_ptr();
    wide_ = tensor.scalar_type() == kLong;
    row_stride_ = tensor.dim() == 2 ? tensor.stride(0) : 0;
    stride_ = tensor.stride(-1);
  }

  bool defined() const {
    return data_ != nullptr;
  }

  int64_t get(int64_t row, int64_t i) const {
    const auto offset = row * row_stride_ + i * stride_;
    return wide_ ? static_cast<const int64_t*>(data_)[offset] : static_cast<const int32_t*>(data_)[offset];
  }

 private:
  const void* data_ = nullptr;
  bool wide_ = false;
  int64_t row_stride_ = 0;
  int64_t stride_ = 0;
};

} // namespace CPU_CAPABILITY

} // namespace at::native
