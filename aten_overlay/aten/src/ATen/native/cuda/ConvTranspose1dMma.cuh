// The instructions that conv_transpose1d's matrix kernels are made of: barriers in shared memory, bulk copies, and
// products on tensor cores.
//
// A factor lies in shared memory as blocks of 16 bytes along the depth (8 numbers of 16 bits, or 4 of TF32), one for
// each row (or column) in turn: [block][row][16 bytes]. So a tap, which is a shift by some columns, is a shift of the
// address. A step of depth is two blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace at::native::conv_transpose1d {

// wgmma and setmaxnreg are of sm_90a alone; other targets take mma.sync.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CONV_TRANSPOSE1D_WGMMA 1
#else
#define CONV_TRANSPOSE1D_WGMMA 0
#endif

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- Barriers ------------------------------------------------------------------------------

__device__ inline void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

__device__ inline void barrier_wait(uint32_t barrier, int parity) {
  uint32_t done = 0;
  while (!done) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
  }
}

// Among `threads` threads, a multiple of 32.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// As named_barrier, but does not wait.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Makes ordinary writes to shared memory visible to wgmma and bulk copies.
__device__ inline void fence_async() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- Copies --------------------------------------------------------------------------------

__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

__device__ inline void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from),
      "r"(bytes),
      "r"(barrier)
      : "memory");
#endif
}

// From shared to global memory, both at multiples of 16 bytes (best of 32).
__device__ inline void bulk_store(void* to, uint32_t from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
#endif
}

__device__ inline void bulk_commit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Until what the thread's bulk stores read may be overwritten.
__device__ inline void bulk_wait_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

__device__ inline void store_shared(uint32_t to, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(words[0]),
               "r"(words[1]),
               "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// ---- Products ------------------------------------------------------------------------------

enum class Element { BFloat16, Half, TF32 };

template <int kRegisters>
__device__ void keep_in_registers(float (&values)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) {
    asm volatile("" : "+f"(values[i])::"memory");
  }
}

__device__ inline void load_matrices(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

#if CONV_TRANSPOSE1D_WGMMA

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Depth along the 16 bytes, no swizzle: blocks `block_bytes` apart, 8 rows of 16 bytes in 128.
__device__ inline uint64_t descriptor(uint32_t address, uint32_t block_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(block_bytes >> 4) << 16 |
      static_cast<uint64_t>(128 >> 4) << 32;
}

// Depth across the 16 bytes, 8 steps of it in 128; blocks of 8 rows or columns `block_bytes` apart.
__device__ inline uint64_t descriptor_across(uint32_t address, uint32_t block_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(128 >> 4) << 16 |
      static_cast<uint64_t>(block_bytes >> 4) << 32;
}

#else

__device__ inline void load_transposed(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

template <Element element>
__device__ void mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define CONV_TRANSPOSE1D_MMA(shape, types)                                                              \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
               "{%0, %1, %2, %3};"                                                                      \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (element == Element::BFloat16) {
    CONV_TRANSPOSE1D_MMA("m16n8k16", "f32.bf16.bf16.f32");
  } else if constexpr (element == Element::Half) {
    CONV_TRANSPOSE1D_MMA("m16n8k16", "f32.f16.f16.f32");
  } else {
    CONV_TRANSPOSE1D_MMA("m16n8k8", "f32.tf32.tf32.f32");
  }
#undef CONV_TRANSPOSE1D_MMA
}

#endif

} // namespace at::native::conv_transpose1d
