#include "backends/cpu/probe.h"
#include "backends/cpu/select.h"
#include "cli/device_probe.h"

namespace octet::cli {
namespace {

class CpuProbe final : public DeviceProbe {
 public:
  CpuProbe(int threads, size_t read_bytes)
      : threads_(threads), caps_(cpu::detect_caps()), read_(threads_, read_bytes) {
    caps_.threads = threads_.size();
    bf16_ = cpu::bf16_dot_peak(threads_, caps_) > 0;
  }

  double read_gb_s() override { return read_.measure(threads_); }
  // A processor without BF16 dot products is held to its FMA peak.
  double compute_gflops() override {
    return bf16_ ? cpu::bf16_dot_peak(threads_, caps_) : cpu::fp32_fma_peak(threads_, caps_);
  }
  std::string compute_name() const override { return bf16_ ? "BF16 dot products" : "FP32 FMA"; }

 private:
  ThreadPool threads_;
  cpu::CpuCaps caps_;
  cpu::ReadProbe read_;
  bool bf16_ = false;
};

}  // namespace

std::unique_ptr<DeviceProbe> make_cpu_probe(int threads, size_t read_bytes) {
  return std::make_unique<CpuProbe>(threads, read_bytes);
}

}  // namespace octet::cli
