// What a benchmark asks of the device beside the model: its own rates, measured in turns with what
// they judge, and where the time between steps goes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace octet::cli {

class DeviceProbe {
 public:
  virtual ~DeviceProbe() = default;

  // GB/s (10^9) of reading memory that no cache holds.
  virtual double read_gb_s() = 0;
  // GB/s of reading the same `bytes` of memory again and again: of the cache that holds them. 0
  // where no cache does, or the device has no such probe.
  virtual double reread_gb_s(size_t /*bytes*/) { return 0; }
  // GFLOP/s of the arithmetic that prefill runs on, and its name.
  virtual double compute_gflops() = 0;
  virtual std::string compute_name() const = 0;

  // From now on the device notes when steps begin and end.
  virtual void time_steps() {}
  // Microseconds between the end of each step on the device and the begin of the next, since
  // time_steps() or the last call; nothing where the host computes itself.
  virtual std::vector<double> step_gaps_us() { return {}; }
};

std::unique_ptr<DeviceProbe> make_cpu_probe(int threads, size_t read_bytes);

}  // namespace octet::cli
