// Hopper's warpgroup multiplication of E4M3 codes (PTX ISA, "wgmma.mma_async") and what it needs:
// descriptors of operands in shared memory, tensor copies, and waits that end.
//
// An operand is lines of 128 bytes of k, as tensor copies with CU_TENSOR_MAP_SWIZZLE_128B leave
// them: eight lines are 1024 bytes, at a multiple of that, and 16-byte piece c of line r lies at
// piece c ^ (r % 8). 32 of k are one instruction; the next 32 begin 32 bytes further in the first
// line, and the hardware applies the same exclusive or to the addresses.
//
// The result, 64 lines of A by N lines of B: thread (warp, lane = 4 g + t) has
//   d[4 j + 0], d[4 j + 1]   line 16 warp + g of A, lines 8 j + 2 t and 8 j + 2 t + 1 of B
//   d[4 j + 2], d[4 j + 3]   the same of line 16 warp + g + 8
#pragma once

#include <cstdint>

#include "backends/cuda/kernels/bulk_copy.cuh"

namespace octet::cuda {

// Lines of 128 bytes, swizzled: groups of eight lines are 1024 bytes apart.
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t address) {
  return uint64_t{(address & 0x3FFFFu) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// d = a · bᵀ of 32 of k where `First`, else d += a · bᵀ. N / 2 registers.
template <int N, bool First>
__device__ __forceinline__ void multiply_async(float (&d)[N / 2], uint64_t a, uint64_t b) {
  constexpr int add = First ? 0 : 1;
  if constexpr (N == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3}, %4, %5, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b), "n"(add));
  } else if constexpr (N == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "n"(add));
  } else if constexpr (N == 32) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "n"(add));
  } else {
    static_assert(N == 64);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "n"(add));
  }
}

// Before the first multiplication, and after registers of a result were read or written.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the last `Pending` groups are done, then lets `d` be read.
template <int Pending, int Count>
__device__ __forceinline__ void wait_products(float (&d)[Count]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Brings the box of a tensor map at (column, row) into shared memory. The barrier is told of the
// bytes of the whole box, also where it reaches over an edge and is filled with zeros.
__device__ __forceinline__ void tensor_copy(uint32_t to, const void* map, int column, int row,
                                            uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The L2 policy of what many blocks read.
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ bool try_wait_barrier(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// wait_barrier, but a barrier that does not complete for two seconds is a fault of the kernel.
__device__ __forceinline__ void wait_or_trap(uint64_t* barrier, uint32_t parity) {
  if (try_wait_barrier(barrier, parity)) return;
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  while (!try_wait_barrier(barrier, parity)) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - begin > 2'000'000'000) __trap();
  }
}

}  // namespace octet::cuda
