#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace octet {
namespace {

std::string amount(double value, Progress::Unit unit) {
  if (unit != Progress::Unit::bytes) {
    return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 0,
                       unit == Progress::Unit::tokens ? "tokens" : "items");
  }
  const char* const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t name = 0;
  for (; value >= 1024 && name < 4; ++name) value /= 1024;
  return fmt::format("{:.1f} {}", value, names[name]);
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

Progress::Progress(std::string label, int64_t total, Unit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      shown_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (!shown_) return;
  draw();
  std::fputc('\n', stderr);
}

void Progress::advance(int64_t amount) {
  done_ += amount;
  if (!shown_) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - start_)
                          .count();
  int64_t due = next_draw_ms_;
  if (now >= due && next_draw_ms_.compare_exchange_strong(due, now + 100)) draw();
}

void Progress::draw() {
  const std::scoped_lock lock(drawing_);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
  // \r and erase to the end: the line replaces the one before.
  std::fputs(fmt::format("\r{}\x1b[K", line(done_, time.count())).c_str(), stderr);
  std::fflush(stderr);
}

std::string Progress::line(int64_t done, double seconds) const {
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (total_ <= 0) {
    return fmt::format("{}  {}  {}/s", label_, amount(static_cast<double>(done), unit_),
                       amount(rate, unit_));
  }
  constexpr int width = 30;
  const double share =
      std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const auto filled = static_cast<size_t>(share * width);
  std::string bar(filled, '=');
  if (filled < width) bar += '>';
  bar.resize(width, ' ');
  const std::string left = done >= total_ ? duration(seconds) + " in all"
                           : rate > 0
                               ? duration(static_cast<double>(total_ - done) / rate) + " left"
                               : "";
  return fmt::format("{} [{}] {:3.0f}%  {}/s  {}", label_, bar, 100 * share, amount(rate, unit_),
                     left);
}

}  // namespace octet
