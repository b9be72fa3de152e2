// Launching with programmatic dependent launch (CUDA programming guide, "Programmatic Dependent
// Launch"): a kernel begins while the one before still runs, so that its set-up and the load of its
// weights cross the boundary.
//
//   kernel n    |== work ==|== tail ==|
//   kernel n+1             |- weights -| wait |== work ==|
//
// Every kernel that is launched by launch() keeps two rules:
//   * it calls wait_for_previous() before it reads or writes anything but constant weights (writes
//     too: the kernel before may still read what is overwritten), in every thread that does so;
//   * it calls allow_next() early, in every block; the next kernel waits in its turn.
// Since each kernel waits for the end of the one before, all kernels before that have ended too.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backends/cuda/kernels/context.h"

namespace octet::cuda {

__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void allow_next() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Enqueues kernel<<<grid, block, shared>>>(args...). Fault if the launch fails. A kernel with more
// than 48 KiB of dynamic shared memory has its limit raised here, once.
template <typename... Params, typename... Args>
void launch(const KernelContext& context, void (*kernel)(Params...), dim3 grid, dim3 block,
            size_t shared, Args&&... args) {
  if (shared > 48 * 1024) {
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "cudaFuncSetAttribute");
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
        "cudaLaunchKernelEx");
}

// A tensor as a kernel sees it: rows of a matrix, `stride` elements apart.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
  __device__ __forceinline__ T* row(int64_t i) const { return data + i * stride; }
};

}  // namespace octet::cuda
