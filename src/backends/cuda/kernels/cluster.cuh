// The blocks of a thread block cluster (PTX ISA, "barrier.cluster"): one barrier, in halves, and
// each other's shared memory. Threads that have ended are not waited for.
#pragma once

#include <cstdint>

namespace octet::cuda::cluster {

// What was written before, also to other blocks, is seen by those who wait_acquire().
__device__ __forceinline__ void arrive_release() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Where `own`, in shared memory, lies in block `rank` of the cluster. That block must have begun,
// and must not end before the last access.
template <typename T>
__device__ __forceinline__ T* in_block(T* own, int rank) {
  uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(own)), "r"(rank));
  return reinterpret_cast<T*>(there);
}

}  // namespace octet::cuda::cluster
