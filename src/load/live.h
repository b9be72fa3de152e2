// What a terminal shows while a load runs: one line of stderr, redrawn.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace octet::load {

class Live {
 public:
  Live() = default;  // shows nothing
  // `total` requests are to come. Silent where stderr is no terminal, or `quiet`.
  Live(std::string label, int64_t total, bool quiet = false);
  ~Live();
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  bool shown() const { return shown_; }
  void sent() { ++in_flight_; }
  void first_token(double ttft_s) { ttfts_.push_back(ttft_s); }
  void token() { ++tokens_; }
  void ended(bool ok) {
    --in_flight_;
    ++(ok ? done_ : failed_);
  }

  void draw();
  // "mixed 12/100  8 in flight  3.2 req/s  410 tok/s  P50 TTFT 35 ms  1 failed" after `seconds`.
  std::string line(double seconds) const;

 private:
  std::string label_;
  int64_t total_ = 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t in_flight_ = 0, done_ = 0, failed_ = 0, tokens_ = 0;
  std::vector<double> ttfts_;
};

}  // namespace octet::load
