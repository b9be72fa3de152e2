// What every kernel launch needs, and the list of all launches.
//
// A launch checks shapes and types (Fault if it cannot take them), picks a grid and enqueues. None
// of them waits, allocates or reads the device: all of them may be captured into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/device.h"
#include "ops/backend.h"

namespace octet::cuda {

// Scratch memory of the op that runs. Ops run one after another in one stream, so each may use all
// of it; nothing in it survives the op.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;

  // `count` elements at `offset` bytes, which moves behind them, to a multiple of 256. Fault if
  // they do not fit.
  template <typename T>
  T* take(size_t& offset, int64_t count) const {
    const size_t begin = offset;
    offset += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    invariant(offset <= bytes, "an operation needs more workspace than there is");
    return reinterpret_cast<T*>(static_cast<char*>(data) + begin);
  }
};

// Why a kernel gave up; written by the device, read by the host after a sync.
enum class FaultKind : int32_t {
  none = 0,
  token_outside_vocabulary,
  row_outside_matrix,
  position_without_block,
};
struct DeviceFault {
  FaultKind kind = FaultKind::none;
  int32_t value = 0;  // the id, the row or the position
};

// Pairs of zeros in device memory, from which the blocks of a launch take what is left to do. Each
// launch that wants one has the next, and leaves it zero: more of them than launches overlap.
struct LaunchCounters {
  static constexpr int kPairs = 64;
  int* data = nullptr;  // [kPairs, 2]
  int used = 0;
  int* take() { return data + 2 * (used++ % kPairs); }
};

class GemmLibrary;  // cuBLASLt's handle and plans: kernels/gemm_library.h

struct KernelContext {
  cudaStream_t stream = nullptr;
  DeviceCaps caps;
  Workspace workspace;
  GemmLibrary* gemm = nullptr;
  LaunchCounters* counters = nullptr;
  DeviceFault* fault = nullptr;    // in host memory that the device can write
  bool deterministic = false;      // a row's bits must not depend on how many rows there are
  bool fast_accumulation = false;  // of the library's FP8 products (GemmProblem::fast)
};

}  // namespace octet::cuda
