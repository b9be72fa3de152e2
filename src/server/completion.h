// POST /v1/completions and /v1/chat/completions: from a parsed request to its answer, streamed or
// whole.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "engine/metrics.h"
#include "server/event_queue.h"
#include "server/http.h"
#include "server/openai.h"
#include "server/prompt.h"
#include "server/request_log.h"

namespace octet::server {

struct CompletionContext {
  engine::Engine& engine;
  PromptEncoder prompts;
  std::shared_ptr<OpenQueues> open;
  RequestLog* log = nullptr;  // null: none is kept
  StructuredOutput structured;
  engine::RequestMetrics& metrics;
  engine::RequestMetrics::Clock::time_point arrival;
};

// What was asked, as the log has it. Outlives the answer.
struct Asked {
  const std::string& path;
  const std::string& body;
};

// Encodes, submits every prompt (times n), and answers through `responder`. When the client goes
// away, all of it is cancelled. Throws ApiError before anything was sent.
boost::asio::awaitable<void> complete(const CompletionContext& context,
                                      const CompletionRequest& request, const Envelope& envelope,
                                      const Asked& asked, Responder& responder);

}  // namespace octet::server
