// What a text must look like, as a set of allowed next tokens: a JSON schema, a regular expression,
// a choice, or a grammar, compiled for one vocabulary.
//
//   GrammarSource ── GrammarCompiler::compile ──▶ Grammar ── start ──▶ GrammarState: fill, accept
//   what is asked     in a process of its own      shared     one text
//
// The engine is xgrammar. What it does not know it would leave out; here that is an Error instead,
// so that a text which ends as it should is what was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "text/sandbox.h"
#include "text/tokenizer.h"

namespace octet::text {

struct GrammarSource {
  enum class Kind : uint8_t {
    json_object,  // any JSON object
    json_schema,  // text: the schema. Objects have the properties that it names, in its order, and
                  // others only where additionalProperties allows them
    regex,        // text: an expression that matches all of the output
    choice,       // text: a JSON array of strings, of which the output is one
    ebnf,         // text: a grammar in the notation of GBNF, whose first rule is root
  };
  Kind kind = Kind::json_object;
  std::string text = "";
  std::string before = "", after = "";  // literal text around it

  bool operator==(const GrammarSource&) const = default;
};

class CompiledGrammar;

// How far one text has come. For one thread at a time. Never throws.
//
// A grammar can be so ambiguous that its states grow with the text. So the work is bounded: once it
// has taken more processor time than `first_s` and `per_token_s` for each token, or all memory,
// nothing is allowed any more.
class GrammarState {
 public:
  struct Limits {
    double first_s = 0.5, per_token_s = 0.005;
  };

  explicit GrammarState(std::shared_ptr<const CompiledGrammar> grammar);
  GrammarState(std::shared_ptr<const CompiledGrammar> grammar, Limits limits);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  // Sets bit t % 32 of word t / 32 for each token t that may come next, clears the others; mask
  // [ceil(vocab / 32)]. False: every token may come, and the mask was not written.
  bool fill(std::span<int32_t> mask);
  // Goes on with `token`; false, and nothing changes, where it may not come next.
  bool accept(int32_t token);
  // Nothing but an end token can follow, or one was accepted.
  bool finished() const;

  // The limits ended it.
  bool given_up() const;

  int64_t tokens() const;  // accepted
  double seconds() const;  // of processor time that fill() and accept() took
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GrammarLimits {
  size_t source_bytes = 256 << 10;        // of a source, all of its texts together
  size_t cache_bytes = size_t{64} << 20;  // of memory for compiled grammars that are kept
  int sandboxes = 2;                      // that compile at a time
  Sandbox::Limits sandbox = {.cpu_seconds = 5,
                             .wall_seconds = 15,
                             .memory_bytes = size_t{1} << 30,
                             .output_bytes = size_t{32} << 20};
};

class GrammarCompiler {
 public:
  // For a model of `vocab` tokens, of which `end_ids` may end a text. Special tokens, and ids that
  // the tokenizer does not have, are never allowed in one. It forks (Sandbox): make it before
  // threads and gigabytes. Throws Error if Octet was built without the engine.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, std::span<const int32_t> end_ids,
                  const GrammarLimits& limits = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // One of the last that were compiled, or null if it was not; at once. Throws the Error of
  // compile() where that one is remembered.
  std::shared_ptr<const CompiledGrammar> find(const GrammarSource& source,
                                              const std::string& where);
  // From any thread, as many calls at a time as there are sandboxes: some milliseconds, and at most
  // the limits of a sandbox. The last ones are kept, and so is why there was none. `where` is the
  // place of the source in errors. Throws Error where the source is wrong, uses what is not
  // supported, or exceeds a limit. Null where the wall clock alone ended it: the machine is too
  // busy, and it may be asked for again.
  std::shared_ptr<const CompiledGrammar> compile(const GrammarSource& source,
                                                 const std::string& where);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether Octet was built with the engine.
bool has_grammar_engine();

}  // namespace octet::text
