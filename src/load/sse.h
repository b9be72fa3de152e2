// Server-sent events: parts of any size in, the data of whole events out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace octet::load {

// As the HTML standard parses a stream: lines end with LF, CR LF or CR; a line that begins with ':'
// is a comment; the `data` lines of an event are joined with LF; a blank line ends the event, which
// counts only if it has data. Other fields are nothing to us.
class SseParser {
 public:
  explicit SseParser(size_t max_event_bytes = size_t{16} << 20) : most_(max_event_bytes) {}

  // Calls `event` for each event that `part` completes. False, for good, once one is longer than
  // allowed.
  bool feed(std::string_view part, FunctionRef<void(std::string_view data)> event);

  // Whether an event has begun that no blank line has ended. A stream that ends so was cut.
  bool unfinished() const { return has_data_ || !line_.empty(); }

 private:
  void end_line(FunctionRef<void(std::string_view data)> event);

  const size_t most_;
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
};

}  // namespace octet::load
