#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
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

std::string shortened(std::string text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most - std::min<size_t>(most, 3);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + "...";
}

Error::Error(ErrorParts parts) : parts_(std::move(parts)) {
  // The other parts name tensors and files, whose names may be megabytes, too.
  constexpr size_t most = 1000, longest = 4000;
  for (std::string* part : {&parts_.what, &parts_.where, &parts_.accepted, &parts_.fix}) {
    *part = shortened(std::move(*part), longest);
  }
  if (const size_t bytes = parts_.value.size(); bytes > most) {
    parts_.value = fmt::format("{} ({} bytes)", shortened(std::move(parts_.value), most), bytes);
  }
  message_ = join(parts_);
}

Fault::Fault(std::string message, SourceLocation at)
    : message_(fmt::format("{} ({}:{}, {})", message, at.file, at.line, at.function)) {}

}  // namespace octet
