// wgmma of sm_90a: the sums of 64 rows and 128, 136, 144 or 256 columns, over one step of depth, by 4 warps. A thread
// holds of every 8 columns those 4 sums that it would hold of mma.sync's m16n8, with 16 rows to a warp.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dMma.cuh>

namespace at::native::conv_transpose1d {

#if CONV_TRANSPOSE1D_WGMMA

#define CONV_TRANSPOSE1D_REGISTERS_0_63 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CONV_TRANSPOSE1D_REGISTERS_64_127 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CONV_TRANSPOSE1D_SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define CONV_TRANSPOSE1D_SUMS_64(i) \
  CONV_TRANSPOSE1D_SUMS_8(i), CONV_TRANSPOSE1D_SUMS_8(i + 8), CONV_TRANSPOSE1D_SUMS_8(i + 16), \
      CONV_TRANSPOSE1D_SUMS_8(i + 24), CONV_TRANSPOSE1D_SUMS_8(i + 32), CONV_TRANSPOSE1D_SUMS_8(i + 40), \
      CONV_TRANSPOSE1D_SUMS_8(i + 48), CONV_TRANSPOSE1D_SUMS_8(i + 56)

// Without `accumulate`, sums start from 0.
#define CONV_TRANSPOSE1D_WGMMA_128(shape, types, tail)                                                    \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n wgmma.mma_async.sync.aligned." shape "." types \
               " {" CONV_TRANSPOSE1D_REGISTERS_0_63 "}, %64, %65, p, 1, 1" tail ";\n}"                    \
               : CONV_TRANSPOSE1D_SUMS_64(0)                                                              \
               : "l"(a), "l"(b), "r"(accumulate))

#define CONV_TRANSPOSE1D_WGMMA_136(shape, types, tail)                                                     \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %70, 0;\n wgmma.mma_async.sync.aligned." shape "." types  \
               " {" CONV_TRANSPOSE1D_REGISTERS_0_63 ", %64, %65, %66, %67}, %68, %69, p, 1, 1" tail ";\n}"  \
               : CONV_TRANSPOSE1D_SUMS_64(0), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])           \
               : "l"(a), "l"(b), "r"(accumulate))

#define CONV_TRANSPOSE1D_WGMMA_144(shape, types, tail)                                                     \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %74, 0;\n wgmma.mma_async.sync.aligned." shape "." types  \
               " {" CONV_TRANSPOSE1D_REGISTERS_0_63                                                        \
               ", %64, %65, %66, %67, %68, %69, %70, %71}, %72, %73, p, 1, 1" tail ";\n}"                  \
               : CONV_TRANSPOSE1D_SUMS_64(0), CONV_TRANSPOSE1D_SUMS_8(64)                                  \
               : "l"(a), "l"(b), "r"(accumulate))

#define CONV_TRANSPOSE1D_WGMMA_256(shape, types, tail)                                                     \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n wgmma.mma_async.sync.aligned." shape "." types \
               " {" CONV_TRANSPOSE1D_REGISTERS_0_63 ", " CONV_TRANSPOSE1D_REGISTERS_64_127                 \
               "}, %128, %129, p, 1, 1" tail ";\n}"                                                        \
               : CONV_TRANSPOSE1D_SUMS_64(0), CONV_TRANSPOSE1D_SUMS_64(64)                                 \
               : "l"(a), "l"(b), "r"(accumulate))

template <Element element>
__device__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_128("m64n128k16", "f32.bf16.bf16", ", 0, 0");
  } else if constexpr (element == Element::Half) {
    CONV_TRANSPOSE1D_WGMMA_128("m64n128k16", "f32.f16.f16", ", 0, 0");
  } else {
    CONV_TRANSPOSE1D_WGMMA_128("m64n128k8", "f32.tf32.tf32", "");
  }
}

// Of factors that lie with the depth across the 16 bytes: blocks of 8 rows or columns, [block][depth][16 bytes].
template <Element element>
__device__ void wgmma_across(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_128("m64n128k16", "f32.bf16.bf16", ", 1, 1");
  } else {
    CONV_TRANSPOSE1D_WGMMA_128("m64n128k16", "f32.f16.f16", ", 1, 1");
  }
}

template <Element element>
__device__ void wgmma(float (&d)[68], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_136("m64n136k16", "f32.bf16.bf16", ", 0, 0");
  } else if constexpr (element == Element::Half) {
    CONV_TRANSPOSE1D_WGMMA_136("m64n136k16", "f32.f16.f16", ", 0, 0");
  } else {
    CONV_TRANSPOSE1D_WGMMA_136("m64n136k8", "f32.tf32.tf32", "");
  }
}

template <Element element>
__device__ void wgmma(float (&d)[72], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_144("m64n144k16", "f32.bf16.bf16", ", 0, 0");
  } else if constexpr (element == Element::Half) {
    CONV_TRANSPOSE1D_WGMMA_144("m64n144k16", "f32.f16.f16", ", 0, 0");
  } else {
    CONV_TRANSPOSE1D_WGMMA_144("m64n144k8", "f32.tf32.tf32", "");
  }
}

template <Element element>
__device__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_WGMMA_256("m64n256k16", "f32.bf16.bf16", ", 0, 0");
  } else if constexpr (element == Element::Half) {
    CONV_TRANSPOSE1D_WGMMA_256("m64n256k16", "f32.f16.f16", ", 0, 0");
  } else {
    CONV_TRANSPOSE1D_WGMMA_256("m64n256k8", "f32.tf32.tf32", "");
  }
}

#undef CONV_TRANSPOSE1D_REGISTERS_0_63
#undef CONV_TRANSPOSE1D_REGISTERS_64_127
#undef CONV_TRANSPOSE1D_SUMS_8
#undef CONV_TRANSPOSE1D_SUMS_64
#undef CONV_TRANSPOSE1D_WGMMA_128
#undef CONV_TRANSPOSE1D_WGMMA_136
#undef CONV_TRANSPOSE1D_WGMMA_144
#undef CONV_TRANSPOSE1D_WGMMA_256

#endif

} // namespace at::native::conv_transpose1d
