#include "text/detokenizer.h"

#include "text/utf8.h"

namespace octet::text {

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  pending_ += tokenizer_->token_bytes(id);
  pending_.erase(0, append_decided_utf8(pending_, text));
  return text;
}

std::string Detokenizer::flush() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return std::string(incomplete ? kReplacement : "");
}

}  // namespace octet::text
