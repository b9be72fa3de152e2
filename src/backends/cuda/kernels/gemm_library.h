// cuBLASLt: its handle, its workspace and the plans of the shapes seen.
#pragma once

#include <cuda_runtime_api.h>

namespace octet::cuda {

class GemmLibrary {
 public:
  explicit GemmLibrary(cudaStream_t stream);
  ~GemmLibrary();
};

}  // namespace octet::cuda
