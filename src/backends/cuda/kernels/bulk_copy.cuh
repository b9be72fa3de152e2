// Rings in shared memory that the copy engine fills: mbarriers and bulk copies (PTX ISA, "mbarrier"
// and "cp.async.bulk").
//
//   full[slot]    completes when the bytes of the slot have arrived: the consumers wait for it
//   empty[slot]   completes when all consumers have read the slot: the producer waits for it
//
// A barrier's phases alternate in parity, from 0: the waiter of the r-th use of a slot waits for
// parity r & 1 of full and, before it fills the slot, for parity (r & 1) ^ 1 of empty, which is
// there at once for r = 0.
#pragma once

#include <cstdint>

namespace octet::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread makes a barrier of `count` arrivals; all see it after fence_barriers() in that thread
// and a __syncthreads().
__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
// Lets the tensor core and the copy engine see what this thread has written to shared memory, once
// the threads have met.
__device__ __forceinline__ void fence_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_writes();
}

__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void arrive_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and makes the phase wait for `bytes` more.
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// True in one lane of a warp, all of whose lanes call it. Copies want their addresses in uniform
// registers: in a lane that was chosen by its index the compiler puts a loop around each.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// The L2 policy of what is read once: it goes first.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies `bytes`, a multiple of 16, between addresses that are multiples of 16; the barrier's phase
// is told of the bytes as they arrive.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same for what is read again soon.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Copies 4 bytes; arrive_after_copies() arrives at the barrier once this thread's copies before it
// are there, as one of the arrivals that the barrier was made for.
__device__ __forceinline__ void copy_word(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Where a ring stands: slot and parity of the round.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace octet::cuda
