#include "load/sse.h"

namespace octet::load {

bool SseParser::feed(std::string_view part, FunctionRef<void(std::string_view data)> event) {
  while (!part.empty() && !too_long_) {
    if (after_cr_ && part.front() == '\n') part.remove_prefix(1);
    after_cr_ = false;
    const size_t end = part.find_first_of("\r\n");
    line_ += part.substr(0, end);
    too_long_ = line_.size() + data_.size() > most_;
    if (end == part.npos) break;
    after_cr_ = part[end] == '\r';
    part.remove_prefix(end + 1);
    end_line(event);
  }
  return !too_long_;
}

void SseParser::end_line(FunctionRef<void(std::string_view data)> event) {
  if (line_.empty()) {
    if (has_data_) event(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  const std::string_view line = line_;
  const std::string_view field = line.substr(0, line.find(':'));
  if (field == "data") {
    std::string_view value = line.substr(field.size());
    if (value.starts_with(':')) value.remove_prefix(1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace octet::load
