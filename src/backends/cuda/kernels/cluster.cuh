// The blocks of a thread block cluster: their barrier, and sending into each other's shared memory
// (PTX ISA, "barrier.cluster", "st.async").
//
// A mailbox is a barrier in a block's shared memory that counts the bytes that arrive: the block
// waits for them alone. Meeting at the cluster's barrier instead would make each block wait until
// all that it ever wrote, to memory too, can be seen.
#pragma once

#include "backends/cuda/kernels/bulk_copy.cuh"

namespace octet::cuda::cluster {

struct Mailbox {
  uint64_t barrier;
};

// One thread opens the mailbox; others may send after the blocks have met.
__device__ __forceinline__ void open(Mailbox& mailbox) {
  init_barrier(&mailbox.barrier, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// All threads of all blocks meet, once; no ordering of anything but mailboxes.
__device__ __forceinline__ void arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// One thread, once: how many bytes will come.
__device__ __forceinline__ void expect(Mailbox& mailbox, int bytes) {
  arrive_and_expect(&mailbox.barrier, static_cast<uint32_t>(bytes));
}
// Stores x in block `rank`, where this block has `to`, and counts its 8 bytes in the mailbox there.
__device__ __forceinline__ void send(float2* to, float2 x, Mailbox& mailbox, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there, box;\n"
      "mapa.shared::cluster.u32 there, %0, %4;\n"
      "mapa.shared::cluster.u32 box, %1, %4;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%2, %3}, "
      "[box];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(shared_address(&mailbox.barrier)), "f"(x.x), "f"(x.y), "r"(rank)
      : "memory");
}
// Waits until they have come: every thread that reads them.
__device__ __forceinline__ void receive(Mailbox& mailbox) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(&mailbox.barrier))
      : "memory");
}

}  // namespace octet::cuda::cluster
