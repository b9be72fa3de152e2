// Structured output: what a request says of the form of its answer, and the constraint of each
// choice that follows from it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "engine/constraint.h"
#include "engine/metrics.h"
#include "server/fair_turns.h"
#include "text/grammar.h"

namespace octet::server {

// The form that a request asks for. For a tool call that must come: kind json_schema with the
// schema of the call, and what the model's format puts around it in source.before and source.after.
struct Structured {
  text::GrammarSource source;
  std::string field;  // of the request, in errors: "response_format.json_schema.schema"
};

// The fields that parse_structured() reads.
inline constexpr std::string_view kStructuredFields[] = {
    "response_format", "structured_outputs", "guided_json",       "guided_regex",
    "guided_choice",   "guided_grammar",     "guided_json_object"};

// What `body` asks for by response_format (OpenAI), structured_outputs (vLLM) or guided_* (older
// vLLM); nothing where it has none of these, or asks for text. `text` is the body as it came: the
// order of a schema's properties matters. Throws ApiError naming the field, also where two of them
// ask for something.
std::optional<Structured> parse_structured(const JsonView& body, const std::string& text);

// Makes grammars for the requests of one client.
struct StructuredOutput {
  text::GrammarCompiler* compiler = nullptr;  // null: there is none
  std::string why_not;                        // then
  // Where compilations run, off the event loop, and who has his turn there.
  boost::asio::any_io_executor workers;
  std::shared_ptr<FairTurns> turns;
  std::string client;  // who asks, as far as that is known

  // What is known already comes at once; else the client waits for his turn, for at most
  // kMostWait. Throws ApiError: 400 naming the field where the form is wrong or too much, or there
  // is no compiler; 503 where the wait is over.
  boost::asio::awaitable<std::shared_ptr<const text::CompiledGrammar>> compile(
      const Structured& wanted) const;
  static constexpr std::chrono::seconds kMostWait{30};
};

// Of one choice. What it costs goes to `metrics`, which outlives it.
std::shared_ptr<engine::TokenConstraint> constraint_of(
    std::shared_ptr<const text::CompiledGrammar> grammar, engine::RequestMetrics& metrics);

}  // namespace octet::server
