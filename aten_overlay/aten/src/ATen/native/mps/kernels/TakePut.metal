// take and put_ on Metal. A negative index counts from the end; one out of range is reported, and touches nothing.
#include <ATen/native/mps/kernels/TakePut.h>
#include <c10/metal/atomic.h>
#include <c10/metal/error.h>
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <metal_stdlib>

using namespace metal;
using c10::metal::AtomicType;
using c10::metal::AtomicType_t;
using c10::metal::ref_at_offs;
using c10::metal::val_at_offs;

// The `number`-th value and index, at offsets in bytes.
struct Place {
  int value;
  int index;

  Place(uint number, constant TakePutParams& p) : value(0), index(0) {
    for (uint d = 0; d < p.ndim; ++d) {
      const uint size = static_cast<uint>(p.sizes[d]);
      const int coordinate = static_cast<int>(number % size);
      number /= size;
      value += coordinate * static_cast<int>(p.value_strides[d]);
      index += coordinate * static_cast<int>(p.index_strides[d]);
    }
  }
};

// The position in self's elements that an index names, or -1.
inline long position_of(long index, constant TakePutParams& p, device c10::metal::ErrorMessages* errors) {
  if (index < -p.self_numel || index >= p.self_numel) {
    TORCH_REPORT_ERROR(errors, "index ", index, " is out of range for a tensor of ", p.self_numel, " elements");
    return -1;
  }
  return index < 0 ? index + p.self_numel : index;
}

// Where self has the element of a position.
inline long offset_of(long position, constant TakePutParams& p) {
  long offset = 0;
  for (uint d = 0; d < p.self_ndim; ++d) {
    offset += position % p.self_sizes[d] * p.self_strides[d];
    position /= p.self_sizes[d];
  }
  return offset;
}

template <typename T>
kernel void take(
    device void* out [[buffer(0)]],
    constant void* index [[buffer(1)]],
    constant T* self [[buffer(2)]],
    constant TakePutParams& p [[buffer(3)]],
    device c10::metal::ErrorMessages* errors [[buffer(4)]],
    uint number [[thread_position_in_grid]]) {
  const Place place(number, p);
  const long position = position_of(val_at_offs<long>(index, place.index), p, errors);
  ref_at_offs<T>(out, place.value) = position < 0 ? T(0) : T(self[offset_of(position, p)]);
}

template <typename T>
kernel void put(
    device T* self [[buffer(0)]],
    constant void* source [[buffer(1)]],
    constant void* index [[buffer(2)]],
    constant TakePutParams& p [[buffer(3)]],
    device c10::metal::ErrorMessages* errors [[buffer(4)]],
    uint number [[thread_position_in_grid]]) {
  const Place place(number, p);
  const long position = position_of(val_at_offs<long>(index, place.index), p, errors);
  if (position >= 0) {
    self[offset_of(position, p)] = val_at_offs<T>(source, place.value);
  }
}

template <typename T>
inline void accumulate(device AtomicType_t<T>* self, long offset, T value) {
  AtomicType<T>::atomic_add(self, offset, value);
}

// All who write store the same, so that nobody has to wait.
inline void accumulate(device bool* self, long offset, bool value) {
  if (value) {
    self[offset] = true;
  }
}

// Words: what the values are while they are added to.
template <typename T, typename Words>
kernel void put_accumulate(
    device Words* self [[buffer(0)]],
    constant void* source [[buffer(1)]],
    constant void* index [[buffer(2)]],
    constant TakePutParams& p [[buffer(3)]],
    device c10::metal::ErrorMessages* errors [[buffer(4)]],
    uint number [[thread_position_in_grid]]) {
  const Place place(number, p);
  const long position = position_of(val_at_offs<long>(index, place.index), p, errors);
  if (position >= 0) {
    accumulate(self, p.self_offset + offset_of(position, p), val_at_offs<T>(source, place.value));
  }
}

// What torch.use_deterministic_algorithms asks for: positions are sorted, then summed in the order of the values.
kernel void put_positions(
    device long* positions [[buffer(0)]],
    constant void* index [[buffer(1)]],
    constant TakePutParams& p [[buffer(2)]],
    device c10::metal::ErrorMessages* errors [[buffer(3)]],
    uint number [[thread_position_in_grid]]) {
  positions[number] = position_of(val_at_offs<long>(index, Place(number, p).index), p, errors);
}

template <typename T>
kernel void put_accumulate_sorted(
    device T* self [[buffer(0)]],
    constant void* source [[buffer(1)]],
    constant long* positions [[buffer(2)]],
    constant long* order [[buffer(3)]],
    constant TakePutParams& p [[buffer(4)]],
    constant uint& numel [[buffer(5)]],
    uint first [[thread_position_in_grid]]) {
  const long position = positions[first];
  if (position < 0 || (first > 0 && positions[first - 1] == position)) {
    return;
  }
  const long offset = offset_of(position, p);
  T sum = self[offset];
  for (uint i = first; i < numel && positions[i] == position; ++i) {
    const Place place(static_cast<uint>(order[i]), p);
    sum = static_cast<T>(sum + val_at_offs<T>(source, place.value));
  }
  self[offset] = sum;
}

#define REGISTER_TAKE_PUT(T)                                              \
  template [[host_name("take_" #T)]] kernel void take<T>(                 \
      device void* out,                                                   \
      constant void* index,                                               \
      constant T* self,                                                   \
      constant TakePutParams& p,                                          \
      device c10::metal::ErrorMessages* errors,                           \
      uint number);                                                       \
  template [[host_name("put_" #T)]] kernel void put<T>(                   \
      device T * self,                                                    \
      constant void* source,                                              \
      constant void* index,                                               \
      constant TakePutParams& p,                                          \
      device c10::metal::ErrorMessages* errors,                           \
      uint number)

// By the size of an element: nothing is computed with them.
REGISTER_TAKE_PUT(uchar);
REGISTER_TAKE_PUT(ushort);
REGISTER_TAKE_PUT(uint);
REGISTER_TAKE_PUT(ulong);

#define REGISTER_PUT_ACCUMULATE(T, WORDS)                                                 \
  template [[host_name("put_accumulate_" #T)]] kernel void put_accumulate<T, WORDS>(      \
      device WORDS * self,                                                                \
      constant void* source,                                                              \
      constant void* index,                                                               \
      constant TakePutParams& p,                                                          \
      device c10::metal::ErrorMessages* errors,                                           \
      uint number)

REGISTER_PUT_ACCUMULATE(float, AtomicType_t<float>);
REGISTER_PUT_ACCUMULATE(half, AtomicType_t<half>);
REGISTER_PUT_ACCUMULATE(bfloat, AtomicType_t<bfloat>);
REGISTER_PUT_ACCUMULATE(float2, AtomicType_t<float2>);
REGISTER_PUT_ACCUMULATE(long, AtomicType_t<long>);
REGISTER_PUT_ACCUMULATE(int, AtomicType_t<int>);
REGISTER_PUT_ACCUMULATE(short, AtomicType_t<short>);
REGISTER_PUT_ACCUMULATE(char, AtomicType_t<char>);
REGISTER_PUT_ACCUMULATE(uchar, AtomicType_t<uchar>);
REGISTER_PUT_ACCUMULATE(bool, bool);

#define REGISTER_PUT_ACCUMULATE_SORTED(T)                                                       \
  template [[host_name("put_accumulate_sorted_" #T)]] kernel void put_accumulate_sorted<T>(     \
      device T * self,                                                                          \
      constant void* source,                                                                    \
      constant long* positions,                                                                 \
      constant long* order,                                                                     \
      constant TakePutParams& p,                                                                \
      constant uint& numel,                                                                     \
      uint first)

// For the others, the order of the values makes no difference.
REGISTER_PUT_ACCUMULATE_SORTED(float);
REGISTER_PUT_ACCUMULATE_SORTED(half);
REGISTER_PUT_ACCUMULATE_SORTED(bfloat);
REGISTER_PUT_ACCUMULATE_SORTED(float2);
