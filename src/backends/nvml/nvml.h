// What the NVIDIA driver says of this machine's GPUs, through NVML
// (docs.nvidia.com/deploy/nvml-api). The library comes with the driver and is opened at run time,
// so that a build needs neither.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octet::nvml {

// What a GPU does not tell (or the driver is too old for) is unset.
struct Gpu {
  std::string name, uuid;
  int major = 0, minor = 0;                              // compute capability
  std::optional<int64_t> memory_total, memory_used;      // bytes
  std::optional<int> sm_mhz, sm_max_mhz, memory_mhz;     // clocks
  std::optional<double> power_watts, power_limit_watts;  // draw, cap
  std::optional<int> celsius;
  std::optional<std::vector<std::string>> throttle_reasons;  // why the clock is below its maximum
  std::optional<bool> ecc, mig;                              // enabled?
  std::optional<int64_t> corrected, uncorrected;             // ECC errors since the driver started
  std::optional<int64_t> corrected_ever, uncorrected_ever;   // in the card's life
  struct RemappedRows {
    int corrected = 0, uncorrected = 0;
    bool pending = false, failed = false;  // waits for a reset; a bank has no spare rows left
  };
  std::optional<RemappedRows> remapped_rows;

  // What a user should act on: "2 uncorrected ECC errors", "rows wait to be remapped: reset the
  // GPU".
  std::vector<std::string> problems() const;
};

struct Report {
  std::string problem;   // not empty: why there are no GPUs here, in words
  std::string driver;    // "580.159.04"
  int cuda_version = 0;  // that the driver supports: 13000 is 13.0
  std::vector<Gpu> gpus;
};

// `library`: a file to open instead of the driver's own libnvidia-ml.
Report query(const std::string& library = "");

// The last lines in which the kernel log reports GPU errors (Xid), newest last; none if it cannot
// be read.
std::vector<std::string> recent_xids(size_t most = 5);

}  // namespace octet::nvml
