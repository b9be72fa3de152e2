#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace octet::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || !is_valid_utf8(stops[i])) {
      throw Error({.what = stops[i].empty() ? "stop string is empty" : "stop string is not UTF-8",
                   .where = "stop[" + std::to_string(i) + "]",
                   .value = "\"" + replace_invalid_utf8(stops[i]) + "\"",
                   .accepted = "at least one character, in UTF-8"});
    }
    Stop stop{.text = std::move(stops[i])};
    stop.border.assign(stop.text.size() + 1, 0);
    for (size_t n = 1, k = 0; n < stop.text.size(); ++n) {
      while (k > 0 && stop.text[n] != stop.text[k]) k = stop.border[k];
      if (stop.text[n] == stop.text[k]) ++k;
      stop.border[n + 1] = static_cast<uint32_t>(k);
    }
    stops_.push_back(std::move(stop));
  }
}

StopMatcher::Result StopMatcher::push(std::string_view token_text) {
  if (result_.stopped) return result_;
  ends_.push_back(passed_ + held_.size() + token_text.size());
  return feed(token_text);
}

StopMatcher::Result StopMatcher::flush(std::string_view last) {
  if (result_.stopped) return result_;
  if (!last.empty()) {
    if (ends_.empty()) ends_.push_back(0);  // no token yet: count one
    ends_.back() = passed_ + held_.size() + last.size();
  }
  Result result = feed(last);
  if (result.stopped) return result;
  passed_ += held_.size();
  result.text += std::exchange(held_, {});
  for (Stop& stop : stops_) stop.matched = 0;
  return result;
}

StopMatcher::Result StopMatcher::feed(std::string_view text) {
  const size_t before = passed_;
  held_ += text;
  size_t at = held_.size() - text.size();  // in held_, behind the byte being looked at
  for (const char c : text) {
    ++at;
    int32_t complete = -1;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      while (stop.matched > 0 && stop.text[stop.matched] != c) {
        stop.matched = stop.border[stop.matched];
      }
      if (stop.text[stop.matched] == c) ++stop.matched;
      if (stop.matched < stop.text.size()) continue;
      if (complete < 0 || stop.text.size() > stops_[complete].text.size()) {
        complete = static_cast<int32_t>(i);
      }
    }
    if (complete < 0) continue;
    const size_t keep = include_stop_ ? at : at - stops_[complete].text.size();
    Result result{.text = held_.substr(0, keep)};
    passed_ += keep;
    held_.clear();
    finish(complete);
    result.stopped = true;
    result.stop = result_.stop;
    result.text_bytes = result_.text_bytes;
    result.kept_tokens = result_.kept_tokens;
    return result;
  }
  // The longest suffix that some stop string begins with has to wait.
  size_t wait = 0;
  for (const Stop& stop : stops_) wait = std::max<size_t>(wait, stop.matched);
  const size_t pass = held_.size() - wait;
  Result result{.text = held_.substr(0, pass)};
  held_.erase(0, pass);
  passed_ = before + pass;
  // A cut can only come at passed_ or later. A token that ends before it is kept for certain.
  while (!ends_.empty() && ends_.front() < passed_) {
    ends_.pop_front();
    ++tokens_before_;
  }
  return result;
}

void StopMatcher::finish(int32_t stop) {
  // The fewest tokens that hold `passed_` bytes: those that end before it, and one more.
  const auto first = std::ranges::find_if(ends_, [&](size_t end) { return end >= passed_; });
  int32_t kept = tokens_before_ + static_cast<int32_t>(first - ends_.begin());
  if (first != ends_.end()) ++kept;
  if (passed_ == 0) kept = 0;
  result_ = {.stopped = true, .stop = stop, .text_bytes = passed_, .kept_tokens = kept};
}

}  // namespace octet::text
