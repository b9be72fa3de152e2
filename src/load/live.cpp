#include "load/live.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace octet::load {
namespace {

// Of many, the last say what is going on now.
double recent_median(const std::vector<double>& values) {
  if (values.empty()) return 0;
  const size_t count = std::min<size_t>(values.size(), 1000);
  std::vector<double> recent(values.end() - static_cast<ptrdiff_t>(count), values.end());
  const auto middle = recent.begin() + static_cast<ptrdiff_t>(count / 2);
  std::ranges::nth_element(recent, middle);
  return *middle;
}

}  // namespace

Live::Live(std::string label, int64_t total, bool quiet)
    : label_(std::move(label)), total_(total), shown_(!quiet && isatty(STDERR_FILENO) == 1) {}

Live::~Live() {
  if (!shown_) return;
  draw();
  std::fputc('\n', stderr);
}

void Live::draw() {
  if (!shown_) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
  // \r and erase to the end: the line replaces the one before.
  std::fputs(fmt::format("\r{}\x1b[K", line(time.count())).c_str(), stderr);
  std::fflush(stderr);
}

std::string Live::line(double seconds) const {
  const double per = seconds > 0 ? 1 / seconds : 0;
  return fmt::format("{} {}/{}  {} in flight  {:.1f} req/s  {:.0f} tok/s  P50 TTFT {:.0f} ms{}",
                     label_, done_ + failed_, total_, in_flight_, static_cast<double>(done_) * per,
                     static_cast<double>(tokens_) * per, recent_median(ttfts_) * 1e3,
                     failed_ > 0 ? fmt::format("  {} failed", failed_) : "");
}

}  // namespace octet::load
