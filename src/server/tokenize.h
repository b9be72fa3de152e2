// POST /tokenize and /detokenize, in the shapes of vLLM's.
#pragma once

#include <string>

#include "server/openai.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace octet::server {

// {"prompt", "add_special_tokens": true} or a conversation {"messages", .., "add_special_tokens":
// false} becomes {"count", "max_model_len", "tokens", "token_strs"}; the last is null unless
// "return_token_strs" asks for it. `chat` may be null: `why_no_chat`. Throws ApiError naming the
// field.
std::string tokenize_json(const std::string& body, const ServedModel& served,
                          const text::Tokenizer& tokenizer, const text::ChatTemplate* chat,
                          const std::string& why_no_chat);

// {"tokens"} becomes {"prompt"}, special tokens included.
std::string detokenize_json(const std::string& body, const ServedModel& served,
                            const text::Tokenizer& tokenizer);

// {"bos_token", "eos_token", "chat_template"}: what clients that tokenize by this server ask for.
std::string tokenizer_info_json(const text::Tokenizer& tokenizer, const text::ChatTemplate* chat);

}  // namespace octet::server
