// An error on one line: for logs, and for the messages of an API.
#pragma once

#include <string>

#include "base/error.h"

namespace octet {

// "what (where): found value; accepted: accepted. fix", of the parts that there are.
inline std::string sentence_of(const ErrorParts& parts) {
  std::string text = parts.what;
  if (!parts.where.empty()) text += " (" + parts.where + ")";
  if (!parts.value.empty()) text += ": found " + parts.value;
  if (!parts.accepted.empty()) text += "; accepted: " + parts.accepted;
  if (!parts.fix.empty()) text += ". " + parts.fix;
  return text;
}

}  // namespace octet
