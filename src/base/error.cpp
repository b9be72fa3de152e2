#include "base/error.h"

#include <fmt/format.h>

#include <utility>

namespace octet {
namespace {

std::string join(const ErrorParts& parts) {
  std::string text = parts.what;
  if (!parts.where.empty()) text += "\n  where:    " + parts.where;
  if (!parts.value.empty()) text += "\n  found:    " + parts.value;
  if (!parts.accepted.empty()) text += "\n  accepted: " + parts.accepted;
  if (!parts.fix.empty()) text += "\n  fix:      " + parts.fix;
  return text;
}

}  // namespace

Error::Error(ErrorParts parts) : parts_(std::move(parts)) {
  // What was found may be megabytes that a client has sent.
  constexpr size_t most = 1000;
  if (parts_.value.size() > most) {
    const size_t bytes = parts_.value.size();
    size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(parts_.value[end]) & 0xC0) == 0x80) --end;
    parts_.value.resize(end);
    parts_.value += fmt::format("... ({} bytes)", bytes);
  }
  message_ = join(parts_);
}

Fault::Fault(std::string message, SourceLocation at)
    : message_(fmt::format("{} ({}:{}, {})", message, at.file, at.line, at.function)) {}

}  // namespace octet
