// The seam to xgrammar, which no other file sees. Without it (OCTET_XGRAMMAR) all of this throws.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octet::text {

// A grammar of the engine, compiled. Immutable; any number of threads may use it.
class CompiledGrammar;

// The engine for one vocabulary. Immutable.
class GrammarEngine {
 public:
  // `tokens` by id; "" is never allowed, whatever the grammar says.
  GrammarEngine(const std::vector<std::string>& tokens, const std::vector<int32_t>& end_ids);
  ~GrammarEngine();
  GrammarEngine(const GrammarEngine&) = delete;
  GrammarEngine& operator=(const GrammarEngine&) = delete;

  enum class Form : uint8_t { json_object, json_schema, regex, ebnf };
  // The compiled grammar of `before`, then `text` in the given form, then `after`, as bytes. Throws
  // std::exception, which says why in words of ours; nothing bounds what it takes of time and
  // memory.
  std::string compile(Form form, const std::string& text, const std::string& before,
                      const std::string& after) const;
  // Whether what a schema's `pattern` matches stays inside its JSON string: some expressions the
  // engine can only expand, quotes and line feeds included. Throws as compile() does.
  static bool fits_a_string(const std::string& pattern);
  // From bytes that compile() of an engine with the same vocabulary gave.
  std::shared_ptr<const CompiledGrammar> load(const std::string& compiled) const;

 private:
  // compile() in the engine's words.
  std::string compiled(Form form, const std::string& text, const std::string& before,
                       const std::string& after) const;

  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

// One text against a grammar. Every call may throw std::exception.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarMatcher();
  // The allowed tokens, as bits of words; words [ceil(vocab / 32)]. False: all are.
  bool fill(std::span<int32_t> words);
  bool accept(int32_t token);
  bool complete() const;  // an end token may come next
  bool ended() const;     // one came
  std::span<const int32_t> end_ids() const;
  int64_t vocab() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool has_grammar_engine();

// `text` as a literal of EBNF, quotes included. It must be UTF-8 without NUL.
std::string ebnf_literal(const std::string& text);

}  // namespace octet::text
