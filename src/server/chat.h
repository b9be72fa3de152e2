// The chat surface as pure functions: JSON in, plain structs, JSON out.
#pragma once

#include <cstdint>
#include <string>

#include "server/openai.h"

namespace octet::server {

// The body of POST /v1/chat/completions: one prompt, a text::ChatInput. Throws ApiError naming the
// field.
CompletionRequest parse_chat(const std::string& body, const ServedModel& served,
                             uint64_t default_seed);

// What the template gets: messages, tools, documents, and how the text ends. `json` is the body
// with its keys in their order: templates write objects out. Throws ApiError naming the field.
text::ChatInput parse_conversation(const JsonView& body, const OrderedJson& json);

// `chat.completion`, and `chat.completion.chunk` with the role in the first chunk of a choice.
const AnswerFormat& chat_format();

}  // namespace octet::server
