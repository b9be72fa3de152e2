// The CUDA backend as a subject of the conformance suite.
#include "backends/cuda/cuda_backend.h"
#include "conformance/subject.h"

namespace octet::conformance {

std::vector<Subject> subjects() {
  Subject subject;
  subject.name = "cuda";
  subject.make = [](const std::string& op, const std::string& kernel) {
    cuda::CudaOptions options;
    options.deterministic = true;
    // The other ops have one kernel each, and nothing to pin.
    if (op == "linear" || op == "head_linear") options.pins[op] = kernel;
    return std::make_unique<cuda::CudaBackend>(options);
  };
  subject.kernels = [](const ops::OpDesc& desc) {
    static const cuda::CudaBackend all;
    return all.kernels_for(desc);
  };
  subject.make_fastest = [] { return std::make_unique<cuda::CudaBackend>(); };
  subject.attention_rule = true;
  return {subject};
}

}  // namespace octet::conformance
