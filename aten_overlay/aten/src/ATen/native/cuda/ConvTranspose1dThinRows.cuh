// Rows of tensors in shared memory, as conv_transpose1d's kernels for thin gradients take them: asynchronous copies
// bring a stretch of each channel as it lies in memory, and threads split that into the order in which tensor cores
// read it.
#pragma once

#include <ATen/native/cuda/ConvTranspose1d.h>
#include <ATen/native/cuda/ConvTranspose1dFormats.cuh>
#include <ATen/native/cuda/ConvTranspose1dPlain.cuh>
#include <ATen/native/cuda/ConvTranspose1dTiling.cuh>
#include <ATen/native/cuda/ConvTranspose1dWgmmaFromRegisters.cuh>

namespace at::native::conv_transpose1d {

inline Device current_device() {
  const auto attribute = [](cudaDeviceAttr name) {
    int device = 0, value = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

// Calls `attempt` with the format of a gradient's factors and PyTorch's type of what they are read from.
template <typename Attempt>
auto with_grad_format(ScalarType type, ConvTranspose1dMath math, const Attempt& attempt) {
  if (type == kHalf) {
    return attempt(HalfFormat(), at::Half());
  }
  if (type == kBFloat16) {
    return attempt(BFloat16Format(), at::BFloat16());
  }
  return math == ConvTranspose1dMath::TF32 ? attempt(TwoTermFormat(), float()) : attempt(ExactFormat(), float());
}

// As many slots as a block's shared memory has room for; none for those that are larger.
template <typename Shape, typename Tiling>
void set_slots(Tiling& tiling, int64_t slot_bytes, const Device& device) {
  const auto memory = (device.shared_bytes + 1024) / Shape::kBlocksPerProcessor - 1024 - Shape::kSlots;
  tiling.slots = static_cast<int>(std::min<int64_t>(Shape::kMaxSlots, memory / slot_bytes));
  tiling.slot_bytes = static_cast<int>(slot_bytes); // where there are slots
}

// How a stretch of each row lies in shared memory: from the multiple of 16 bytes before it on.
struct ThinRowLayout {
  int span; // elements
  int pitch; // bytes between rows
  int lanes; // that copy most of a row, 16 bytes each
  FastDivisor rest = FastDivisor(1); // times 16 bytes that are left of a row
};

// `rows_at_once`: a warp reads 8 positions of 8 rows at once, instead of 32 of one.
inline ThinRowLayout thin_row_layout(const Problem& p, int positions, int size, bool rows_at_once) {
  const auto span = static_cast<int>(p.position_stride * (positions - 1) + p.class_step * (p.classes - 1) + 1);
  const int chunks = std::max(9, (span * size + 15 + 15) / 16);
  const int lanes = chunks > 32 ? 32 : chunks > 16 ? 16 : 8;
  int pitch = chunks * 16;
  if (rows_at_once) {
    // Few conflicts between banks.
    const auto apart = static_cast<int>(std::min<int64_t>(64, 8 * p.position_stride * size));
    pitch = (pitch + 127 - apart) / 128 * 128 + apart;
  }
  return {
      span,
      pitch,
      lanes,
      FastDivisor(static_cast<uint32_t>(chunks - lanes))};
}

// The rows of a tile in one tensor.
template <typename scalar_t>
struct ThinRows {
  const scalar_t* first; // row of the first sample
  const scalar_t* begin; // of the tensor
  const scalar_t* end;
  int64_t sample; // elements of one
  int64_t length;
  int count;
  const ThinRowLayout& layout;

  __device__ bool inside(int64_t origin) const {
    return origin >= 0 && origin + layout.span <= length;
  }

  // How far behind a multiple of 16 bytes elements `origin` of the first row lie. Places in the copies change with that
  // alone.
  __device__ int phase(int64_t n, int64_t origin) const {
    return static_cast<int>(address_of(n, origin) % kChunk);
  }

  // Where elements `origin` of row `row` begin in the copies.
  __device__ int place(int64_t n, int64_t origin, int row) const {
    const auto address = static_cast<uint32_t>(address_of(n, origin)) +
        static_cast<uint32_t>(row) * static_cast<uint32_t>(length) * static_cast<uint32_t>(sizeof(scalar_t));
    return row * layout.pitch + static_cast<int>(address % kChunk);
  }

  // Starts copies of elements [origin, origin + span) of all rows; those beyond a row are of its neighbours or 0.
  __device__ void start_copies(uint32_t to, int64_t n, int64_t origin, uint32_t barrier) const {
    const auto row_bytes = length * static_cast<int64_t>(sizeof(scalar_t));
    const auto lowest = address_of(n, origin);
    const auto highest = lowest + (count - 1) * row_bytes + (layout.lanes + layout.rest.value) * kChunk;
    if (in_tensor(lowest / kChunk * kChunk, highest)) {
      copy_rows<true>(to, lowest, row_bytes);
    } else {
      copy_rows<false>(to, lowest, row_bytes);
      fill_edges(to, lowest, row_bytes);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
  }

 private:
  static constexpr int kChunk = 16;

  __device__ uintptr_t address_of(int64_t n, int64_t origin) const {
    return reinterpret_cast<uintptr_t>(first + n * sample + origin);
  }

  __device__ bool in_tensor(uintptr_t first, uintptr_t last) const {
    return first >= reinterpret_cast<uintptr_t>(begin) && last <= reinterpret_cast<uintptr_t>(end);
  }

  // All chunks that are in the tensor as a whole.
  template <bool kInside>
  __device__ __forceinline__ void copy_rows(uint32_t to, uintptr_t from, int64_t row_bytes) const {
    const int lane = threadIdx.x % layout.lanes, first_row = threadIdx.x / layout.lanes;
    const int at_once = kWarpgroup / layout.lanes;
    const auto step = at_once * row_bytes;
    auto source = from + first_row * row_bytes + lane * kChunk;
    auto destination = to + first_row * layout.pitch + lane * kChunk;
#pragma unroll 4
    for (int row = first_row; row < count; row += at_once) {
      copy_chunk<kInside>(destination, source);
      source += step;
      destination += at_once * layout.pitch;
    }
    const int rest = static_cast<int>(layout.rest.value);
    for (int i = threadIdx.x; i < rest * count; i += kWarpgroup) {
      const int row = static_cast<int>(layout.rest.divide(i)), chunk = layout.lanes + i - row * rest;
      copy_chunk<kInside>(to + row * layout.pitch + chunk * kChunk, from + row * row_bytes + chunk * kChunk);
    }
  }

  // The multiple of 16 bytes at or before an address.
  template <bool kInside>
  __device__ __forceinline__ void copy_chunk(uint32_t to, uintptr_t from) const {
    from = from / kChunk * kChunk;
    if (kInside || in_tensor(from, from + kChunk)) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    }
  }

  // All other chunks, which the first and the last rows have: what is beyond the tensor is not read, and becomes 0. The
  // block's next barrier publishes them, before anything of these copies is used.
  __device__ __forceinline__ void fill_edges(uint32_t to, uintptr_t from, int64_t row_bytes) const {
    using Bits = std::conditional_t<sizeof(scalar_t) == 4, uint32_t, uint16_t>;
    const int bytes = (layout.lanes + static_cast<int>(layout.rest.value)) * kChunk;
    // False if the row has none.
    const auto fill_row = [&](int row) {
      const auto begin_of_row = (from + row * row_bytes) / kChunk * kChunk;
      if (in_tensor(begin_of_row, begin_of_row + bytes)) {
        return false;
      }
#pragma unroll 1
      for (int at = threadIdx.x * 4; at < bytes; at += kWarpgroup * 4) {
        const auto chunk = begin_of_row + at / kChunk * kChunk;
        if (!in_tensor(chunk, chunk + kChunk)) {
          uint32_t word = 0;
#pragma unroll
          for (int part = 0; part < 4; part += sizeof(Bits)) {
            const auto element = begin_of_row + at + part;
            if (in_tensor(element, element + sizeof(Bits))) {
              word |= static_cast<uint32_t>(*reinterpret_cast<const Bits*>(element)) << 8 * part;
            }
          }
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + row * layout.pitch + at), "r"(word) : "memory");
        }
      }
      return true;
    };
    int row = 0;
#pragma unroll 1
    while (row < count && fill_row(row)) {
      ++row;
    }
#pragma unroll 1
    for (int last = count - 1; last > row && fill_row(last);) {
      --last;
    }
  }
};

// Where rows by class begin in the copies; rows beyond the last are the last one again.
template <typename scalar_t>
__device__ void find_places(
    const Problem& p, const ThinRows<scalar_t>& rows, int* places, int count, int64_t n, int64_t origin) {
  for (int i = threadIdx.x; i < count; i += kWarpgroup) {
    const int row = i / static_cast<int>(p.classes), klass = i % static_cast<int>(p.classes);
    places[i] = rows.place(n, origin, min(row, rows.count - 1)) +
        klass * static_cast<int>(p.class_step) * static_cast<int>(sizeof(scalar_t));
  }
}

// Splits a block of 8 rows at one position into planes, [kBlocks][kPitch positions][16 bytes] each.
template <typename Format, int kBlocks, int kPitch, bool kInside>
__device__ __forceinline__ void split_block(
    const Problem& p,
    const int* places,
    const char* raw,
    uint32_t planes,
    int first, // element of a row
    int block,
    int position,
    Extremes& extremes) {
  using scalar_t = typename Format::scalar_t;
  const int at = position * static_cast<int>(p.position_stride);
  const auto* from = raw + at * static_cast<int>(sizeof(scalar_t));
  scalar_t values[8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto four = reinterpret_cast<const int4*>(places)[2 * block + half];
    const int place[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * half + i;
      bool exists = true;
      if constexpr (!kInside) {
        const int klass = (8 * block + e) % static_cast<int>(p.classes);
        exists = static_cast<unsigned>(first + at + klass * static_cast<int>(p.class_step)) <
            static_cast<unsigned>(p.length);
      }
      values[e] = exists ? *reinterpret_cast<const scalar_t*>(from + place[i]) : narrow<scalar_t>(0.0f);
      if constexpr (Format::kExact) {
        extremes.add_least(values[e]);
      }
    }
  }
  uint32_t words[Format::kPlanes][4];
  Format::split(values, words);
#pragma unroll
  for (int plane = 0; plane < Format::kPlanes; ++plane) {
    store_shared(planes + ((plane * kBlocks + block) * kPitch + position) * 16, words[plane]);
  }
}

// Splits all of kBlocks blocks at kPositions positions and `halo` more.
template <typename Format, int kBlocks, int kPositions, int kPitch, bool kInside>
__device__ __forceinline__ void split_rows(
    const Problem& p, const int* places, const char* raw, uint32_t planes, int first, int halo, Extremes& extremes) {
#pragma unroll
  for (int i = 0; i < kBlocks * kPositions; i += kWarpgroup) {
    const int index = i + static_cast<int>(threadIdx.x);
    split_block<Format, kBlocks, kPitch, kInside>(
        p, places, raw, planes, first, index / kPositions, index % kPositions, extremes);
  }
  for (int index = threadIdx.x; index < kBlocks * halo; index += kWarpgroup) {
    split_block<Format, kBlocks, kPitch, kInside>(
        p, places, raw, planes, first, index % kBlocks, kPositions + index / kBlocks, extremes);
  }
}

// Whether a plane of leading terms, as pairs of bfloat16, has a large number.
__device__ inline bool has_large_term(uint32_t pair) {
  constexpr uint32_t kLeast = Extremes::kLarge >> 16;
  return (pair & 0x7FFFu) >= kLeast || (pair >> 16 & 0x7FFFu) >= kLeast;
}

__device__ inline bool has_large_term(const char* plane, int bytes) {
  bool found = false;
  for (int i = threadIdx.x * 4; i < bytes; i += kWarpgroup * 4) {
    found |= has_large_term(*reinterpret_cast<const uint32_t*>(plane + i));
  }
  return found;
}

#if CONV_TRANSPOSE1D_WGMMA

// Further on by a multiple of 16 bytes.
__device__ inline uint64_t advance_descriptor(uint64_t descriptor, int bytes) {
  return (descriptor & ~uint64_t(0xFFFFFFFF)) | (static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes / 16));
}

// Fragments of rows that wgmma takes from registers.
template <typename Format, int kSteps>
struct RowFragments {
  uint32_t words[kSteps][Format::kPlanes][4];

  // Keeps the registers until here.
  __device__ void keep() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int plane = 0; plane < Format::kPlanes; ++plane) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          asm volatile("" : "+r"(words[step][plane][i])::"memory");
        }
      }
    }
  }
};

// Starts the products of all steps with columns in shared memory, the leading ones last. kStepBytes and
// kPlaneBytes lie between those of the columns.
template <typename Format, bool kAcross, int kStepBytes, int kPlaneBytes, int kSteps, int kSums>
__device__ __forceinline__ void start_row_products(
    float (&sums)[kSums], const RowFragments<Format, kSteps>& rows, uint64_t columns, bool from_zero) {
  using List = Products<Format>;
#pragma unroll
  for (int part = 0; part < (List::kCount > 1 ? 2 : 1); ++part) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < List::kCount; ++i) {
        if (List::kCount == 1 || (i == List::kCount - 1) == (part == 1)) {
          wgmma_from_registers<Format::kElement, kAcross>(
              sums,
              rows.words[step][List::source_plane(i)],
              advance_descriptor(columns, List::weight_plane(i) * kPlaneBytes + step * kStepBytes),
              !(from_zero && part == 0 && step == 0 && i == 0));
        }
      }
    }
  }
  wgmma_commit();
}

#endif

} // namespace at::native::conv_transpose1d
