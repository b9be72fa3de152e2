#include <algorithm>
#include <optional>
#include <vector>

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
  // As many as the read probe reads are in no cache. The first pass, which brings them there, does
  // not count.
  double reread_gb_s(size_t bytes) override {
    if (bytes == 0 || bytes >= read_.bytes()) return 0;
    if (!reread_ || reread_->bytes() != bytes) reread_.emplace(threads_, bytes);
    reread_->measure(threads_);
    constexpr size_t least_bytes = size_t{64} << 20;
    std::vector<double> rates;
    for (size_t read = 0; read < least_bytes; read += bytes) {
      rates.push_back(reread_->measure(threads_));
    }
    std::ranges::sort(rates);
    return rates[rates.size() / 2];
  }
  // A processor without BF16 dot products is held to its FMA peak.
  double compute_gflops() override {
    return bf16_ ? cpu::bf16_dot_peak(threads_, caps_) : cpu::fp32_fma_peak(threads_, caps_);
  }
  std::string compute_name() const override { return bf16_ ? "BF16 dot products" : "FP32 FMA"; }

 private:
  ThreadPool threads_;
  cpu::CpuCaps caps_;
  cpu::ReadProbe read_;
  std::optional<cpu::ReadProbe> reread_;  // of as many bytes as were asked for last
  bool bf16_ = false;
};

}  // namespace

std::unique_ptr<DeviceProbe> make_cpu_probe(int threads, size_t read_bytes) {
  return std::make_unique<CpuProbe>(threads, read_bytes);
}

}  // namespace octet::cli
