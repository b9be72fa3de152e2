// From the prompts of a request to token ids, and what an answer must know of them.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace octet::server {

// A prompt as the model gets it.
struct EncodedPrompt {
  std::vector<int32_t> ids;
  // Of a request with echo: the prompt's text, and the characters of it before each token.
  std::string text;
  std::vector<size_t> offsets;
};

struct PromptEncoder {
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat;  // null: the model has none
  int64_t max_model_len, vocab;
  boost::asio::any_io_executor workers;  // where long prompts are tokenized and templates run

  // The prompts of a request. Ends early, with fewer prompts than
  // asked for, once the client has `gone`. Throws ApiError for what cannot be a prompt. Short ones
  // are encoded at once, long ones by the workers.
  boost::asio::awaitable<std::vector<EncodedPrompt>> encode(const CompletionRequest& request,
                                                            std::stop_token gone) const;
};

// The sequences of tokens that spell a word, at the beginning of a text and inside it, as vLLM
// finds them: alone, and behind a space where that gives another first token and as many of them.
// Those with a token beyond `vocab` are left out: the model cannot write them.
std::vector<std::vector<int32_t>> tokens_of_bad_words(const text::Tokenizer& tokenizer,
                                                      const std::vector<std::string>& words,
                                                      int64_t vocab);

// Of valid UTF-8.
size_t count_chars(std::string_view text);

}  // namespace octet::server
