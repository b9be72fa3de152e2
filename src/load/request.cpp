#include "load/request.h"

namespace octet::load {

std::string_view name_of(Failure failure) {
  switch (failure) {
    case Failure::none:
      return "none";
    case Failure::connect:
      return "connect";
    case Failure::status:
      return "http_status";
    case Failure::timeout:
      return "timeout";
    case Failure::broken:
      return "broken_stream";
    case Failure::invalid:
      return "invalid_answer";
    case Failure::error:
      return "error_event";
    case Failure::empty:
      return "empty";
  }
  return "?";
}

}  // namespace octet::load
