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

Error::Error(ErrorParts parts) : parts_(std::move(parts)), message_(join(parts_)) {}

Fault::Fault(std::string message, SourceLocation at)
    : message_(fmt::format("{} ({}:{}, {})", message, at.file, at.line, at.function)) {}

}  // namespace octet
