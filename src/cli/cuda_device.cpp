#include "cli/cuda_device.h"

#ifdef OCTET_CUDA
#include "backends/cuda/probe.h"
#endif

namespace octet::cli {

#ifdef OCTET_CUDA

namespace {

class CudaProbe final : public DeviceProbe {
 public:
  explicit CudaProbe(cuda::CudaBackend& backend)
      : backend_(backend),
        read_(backend, size_t{2} << 30),
        gemm_(backend, 4096, 8192, 4096),
        timer_(backend.context().stream) {}
  ~CudaProbe() override { backend_.time_steps(nullptr); }

  double read_gb_s() override { return read_.measure(); }
  double compute_gflops() override { return gemm_.measure() * 1e3; }
  std::string compute_name() const override { return "cuBLASLt FP8 product"; }
  void time_steps() override {
    backend_.sync();
    timer_.take();
    backend_.time_steps(&timer_);
  }
  std::vector<double> step_gaps_us() override {
    backend_.sync();
    return timer_.take().gaps;
  }

 private:
  cuda::CudaBackend& backend_;
  cuda::ReadProbe read_;
  cuda::GemmProbe gemm_;
  cuda::StepTimer timer_;
};

}  // namespace

bool built_with_cuda() {
  return true;
}

std::unique_ptr<ops::Backend> open_cuda(const CudaRequest& request) {
  return std::make_unique<cuda::CudaBackend>(
      cuda::CudaOptions{.device = cuda::parse_device_index(request.device),
                        .deterministic = request.deterministic,
                        .fast_accumulation = request.fast_accumulation,
                        .graphs = request.graphs,
                        .pins = request.pins});
}

std::unique_ptr<DeviceProbe> make_cuda_probe(ops::Backend& backend) {
  return std::make_unique<CudaProbe>(dynamic_cast<cuda::CudaBackend&>(backend));
}

int64_t cuda_used_bytes(ops::Backend& backend) {
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const ops::BackendInfo& info = backend.info();
  return info.memory_bytes + info.workspace_bytes - static_cast<int64_t>(free);
}

#else

bool built_with_cuda() {
  return false;
}

std::unique_ptr<ops::Backend> open_cuda(const CudaRequest& request) {
  throw Error({.what = "this octet was built without CUDA",
               .where = "--device",
               .value = request.device,
               .accepted = "cpu",
               .fix =
                   "build with `cmake --preset cuda && cmake --build --preset cuda`, which needs "
                   "nvcc 13, and run build/cuda/octet"});
}

std::unique_ptr<DeviceProbe> make_cuda_probe(ops::Backend&) {
  throw Fault("this octet was built without CUDA");
}

int64_t cuda_used_bytes(ops::Backend&) {
  return 0;
}

#endif

}  // namespace octet::cli
