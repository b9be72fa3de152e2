// POST /v1/completions and /v1/chat/completions: from a parsed request to its answer, streamed or
// whole.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "server/event_queue.h"
#include "server/http.h"
#include "server/openai.h"

namespace octet::server {

struct CompletionContext {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat;  // null: the model has none
  const ServedModel& served;
  boost::asio::any_io_executor workers;  // where long prompts are tokenized and templates run
  std::shared_ptr<OpenQueues> open;
};

// Encodes, submits every prompt (times n), and answers through `responder`. When the client goes
// away, all of it is cancelled. Throws ApiError before anything was sent.
boost::asio::awaitable<void> complete(const CompletionContext& context,
                                      const CompletionRequest& request, const std::string& id,
                                      Responder& responder);

}  // namespace octet::server
