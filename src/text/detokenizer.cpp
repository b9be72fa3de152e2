#include "text/detokenizer.h"

#include "text/utf8.h"

namespace octet::text {

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  pending_ += tokenizer_->token_bytes(id);
  pending_.erase(0, append_decided_utf8(pending_, text, replacement_));
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  if (!pending_.empty()) append_replacement(pending_.size(), replacement_, text);
  pending_.clear();
  return text;
}

}  // namespace octet::text
