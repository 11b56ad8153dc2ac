// wgmma of sm_90a with its rows in registers: the sums of 64 rows and 32 or 64 columns, over 16 of the depth, by 4
// warps. A thread holds of the rows what it would of mma.sync's m16n8k16, with 16 rows to a warp, and of the sums
// likewise. Columns lie in shared memory with the depth along the 16 bytes, or across them.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dMma.cuh>

namespace at::native::conv_transpose1d {

#if CONV_TRANSPOSE1D_WGMMA

#define CONV_TRANSPOSE1D_SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define CONV_TRANSPOSE1D_ROWS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// Without `accumulate`, sums start from 0.
#define CONV_TRANSPOSE1D_WGMMA_32(types)                                                        \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %21, 0;\n"                                   \
               " wgmma.mma_async.sync.aligned.m64n32k16." types                                 \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"       \
               " {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"                                     \
               : CONV_TRANSPOSE1D_SUMS_8(0), CONV_TRANSPOSE1D_SUMS_8(8)                         \
               : CONV_TRANSPOSE1D_ROWS, "l"(b), "r"(accumulate), "n"(across))

#define CONV_TRANSPOSE1D_WGMMA_64(types)                                                        \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %37, 0;\n"                                   \
               " wgmma.mma_async.sync.aligned.m64n64k16." types                                 \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"        \
               " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}," \
               " {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                                     \
               : CONV_TRANSPOSE1D_SUMS_8(0), CONV_TRANSPOSE1D_SUMS_8(8), CONV_TRANSPOSE1D_SUMS_8(16), \
                 CONV_TRANSPOSE1D_SUMS_8(24)                                                    \
               : CONV_TRANSPOSE1D_ROWS, "l"(b), "r"(accumulate), "n"(across))

template <Element element, int across>
__device__ void wgmma_from_registers(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_32("f32.bf16.bf16");
  } else {
    CONV_TRANSPOSE1D_WGMMA_32("f32.f16.f16");
  }
}

template <Element element, int across>
__device__ void wgmma_from_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_64("f32.bf16.bf16");
  } else {
    CONV_TRANSPOSE1D_WGMMA_64("f32.f16.f16");
  }
}

#undef CONV_TRANSPOSE1D_SUMS_8
#undef CONV_TRANSPOSE1D_ROWS
#undef CONV_TRANSPOSE1D_WGMMA_32
#undef CONV_TRANSPOSE1D_WGMMA_64

#endif

} // namespace at::native::conv_transpose1d
