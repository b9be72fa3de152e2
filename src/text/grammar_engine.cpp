#include "text/grammar_engine.h"

#ifdef OCTET_XGRAMMAR
#include <xgrammar/xgrammar.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "base/json.h"
#include "text/grammar_faults.h"

namespace octet::text {

std::string ebnf_literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));  // \x would take any number of digits
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace octet::text

#ifdef OCTET_XGRAMMAR

namespace octet::text {
namespace {

// The engine's log has no context to put this into. Set while this thread compiles: the first thing
// that it says it leaves out.
thread_local std::string* first_warning = nullptr;

// An escaped punctuation mark that it does not know stands for itself, as everywhere.
bool is_harmless(const std::string& warning) {
  constexpr std::string_view begin = "Escape sequence '\\";
  const size_t at = warning.find(begin);
  const size_t escaped = at + begin.size();
  return at != warning.npos && escaped < warning.size() &&
         std::isalnum(static_cast<unsigned char>(warning[escaped])) == 0;
}

class WarningScope {
 public:
  explicit WarningScope(std::string& text) { first_warning = &text; }
  ~WarningScope() { first_warning = nullptr; }
  WarningScope(const WarningScope&) = delete;
  WarningScope& operator=(const WarningScope&) = delete;
};

}  // namespace
}  // namespace octet::text

// What the engine is built to call (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int warning = 2;
  std::string* first = octet::text::first_warning;
  if (first && level >= warning && first->empty() && !octet::text::is_harmless(message)) {
    *first = message;
  }
}

}  // namespace xgrammar

namespace octet::text {

struct GrammarEngine::Impl {
  xgrammar::TokenizerInfo vocabulary;
};

class CompiledGrammar {
 public:
  xgrammar::CompiledGrammar grammar;
};

struct GrammarMatcher::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
  int64_t vocab;
};

namespace {

bool fill_mask(xgrammar::GrammarMatcher& matcher, std::span<int32_t> words) {
  auto size = static_cast<int64_t>(words.size());
  DLTensor tensor{.data = words.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &size,
                  .strides = nullptr,
                  .byte_offset = 0};
  return matcher.FillNextTokenBitmask(&tensor);
}

// What the engine throws leaves it in words of ours.
template <class Work>
auto in_own_words(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fault_in_own_words(error.what()));
  }
}

// What is said of a form that no text has, in the engine's place.
constexpr const char* kNoText = "no text has this form";

// Whether any token, an end token among them, may come behind `before`.
bool can_begin(const xgrammar::CompiledGrammar& compiled, const std::string& before) {
  xgrammar::GrammarMatcher matcher(compiled);
  if (!before.empty() && !matcher.AcceptString(before)) return false;
  const auto vocab = static_cast<size_t>(compiled.GetTokenizerInfo().GetVocabSize());
  std::vector<int32_t> words((vocab + 31) / 32);
  return !fill_mask(matcher, words) ||
         std::ranges::any_of(words, [](int32_t word) { return word != 0; });
}

}  // namespace

GrammarEngine::GrammarEngine(const std::vector<std::string>& tokens,
                             const std::vector<int32_t>& end_ids)
    : impl_(std::make_unique<Impl>(Impl{xgrammar::TokenizerInfo(
          tokens, xgrammar::VocabType::RAW, static_cast<int>(tokens.size()), end_ids)})) {}

GrammarEngine::~GrammarEngine() = default;

std::string GrammarEngine::compile(Form form, const std::string& text, const std::string& before,
                                   const std::string& after) const {
  return in_own_words([&] { return compiled(form, text, before, after); });
}

std::string GrammarEngine::compiled(Form form, const std::string& text, const std::string& before,
                                    const std::string& after) const {
  using xgrammar::Grammar;
  std::string warning;
  const WarningScope scope(warning);
  const auto make = [&] {
    // Enough to indent by; without a bound a model may write white space for ever.
    constexpr int most_whitespace = 16;
    switch (form) {
      case Form::json_object:
        return Grammar::FromJSONSchema(R"({"type":"object"})", true, std::nullopt, std::nullopt,
                                       false, most_whitespace);
      case Form::json_schema:
        return Grammar::FromJSONSchema(text, true, std::nullopt, std::nullopt, true,
                                       most_whitespace);
      case Form::regex:
        return Grammar::FromRegex(text);
      case Form::ebnf:
        break;
    }
    return Grammar::FromEBNF(text);
  };
  const auto literal = [](const std::string& what) {
    return Grammar::FromEBNF("root ::= " + ebnf_literal(what));
  };
  std::vector<Grammar> parts;
  if (!before.empty()) parts.push_back(literal(before));
  parts.push_back(make());
  if (!after.empty()) parts.push_back(literal(after));
  const Grammar grammar = parts.size() == 1 ? parts[0] : Grammar::Concat(parts);
  if (!warning.empty()) throw std::runtime_error(warning);
  constexpr int threads = 1;
  constexpr bool cache = false;
  xgrammar::GrammarCompiler compiler(impl_->vocabulary, threads, cache);
  const xgrammar::CompiledGrammar compiled = compiler.CompileGrammar(grammar);
  if (!warning.empty()) throw std::runtime_error(warning);
  if (!can_begin(compiled, before)) throw std::runtime_error(kNoText);
  return compiled.SerializeJSON();
}

bool GrammarEngine::fits_a_string(const std::string& pattern) {
  const std::string schema = dump_json(Json{{"type", "string"}, {"pattern", pattern}});
  return in_own_words([&] {
    // How it prints an expression that it keeps to what needs no escape in a string.
    const std::string grammar = xgrammar::Grammar::FromJSONSchema(schema).ToString();
    return grammar.find(", json_string=true)") != grammar.npos;
  });
}

std::shared_ptr<const CompiledGrammar> GrammarEngine::load(const std::string& compiled) const {
  auto loaded = xgrammar::CompiledGrammar::DeserializeJSON(compiled, impl_->vocabulary);
  if (auto* error = std::get_if<xgrammar::SerializationError>(&loaded)) {
    throw std::runtime_error(std::visit([](const auto& e) { return e.what(); }, *error));
  }
  return std::make_shared<CompiledGrammar>(
      CompiledGrammar{std::get<xgrammar::CompiledGrammar>(std::move(loaded))});
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar) {
  const xgrammar::CompiledGrammar& compiled = grammar->grammar;
  xgrammar::GrammarMatcher matcher(compiled);
  const int64_t vocab = compiled.GetTokenizerInfo().GetVocabSize();
  impl_ = std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher), vocab});
}

GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::fill(std::span<int32_t> words) {
  return fill_mask(impl_->matcher, words);
}

bool GrammarMatcher::accept(int32_t token) {
  return impl_->matcher.AcceptToken(token);
}

bool GrammarMatcher::complete() const {
  return impl_->matcher.IsCompleted();
}

bool GrammarMatcher::ended() const {
  return impl_->matcher.IsTerminated();
}

std::span<const int32_t> GrammarMatcher::end_ids() const {
  return impl_->matcher.GetStopTokenIds();
}

int64_t GrammarMatcher::vocab() const {
  return impl_->vocab;
}

bool has_grammar_engine() {
  return true;
}

}  // namespace octet::text

#else

namespace octet::text {

struct GrammarEngine::Impl {};
class CompiledGrammar {};
struct GrammarMatcher::Impl {};

namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("built without the engine of structured output");
}

}  // namespace

GrammarEngine::GrammarEngine(const std::vector<std::string>&, const std::vector<int32_t>&) {
  refuse();
}
GrammarEngine::~GrammarEngine() = default;
std::string GrammarEngine::compile(Form, const std::string&, const std::string&,
                                   const std::string&) const {
  refuse();
}
std::string GrammarEngine::compiled(Form, const std::string&, const std::string&,
                                    const std::string&) const {
  refuse();
}
bool GrammarEngine::fits_a_string(const std::string&) {
  refuse();
}
std::shared_ptr<const CompiledGrammar> GrammarEngine::load(const std::string&) const {
  refuse();
}
GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar>) {
  refuse();
}
GrammarMatcher::~GrammarMatcher() = default;
bool GrammarMatcher::fill(std::span<int32_t>) {
  refuse();
}
bool GrammarMatcher::accept(int32_t) {
  refuse();
}
bool GrammarMatcher::complete() const {
  refuse();
}
bool GrammarMatcher::ended() const {
  refuse();
}
std::span<const int32_t> GrammarMatcher::end_ids() const {
  refuse();
}
int64_t GrammarMatcher::vocab() const {
  refuse();
}
bool has_grammar_engine() {
  return false;
}

}  // namespace octet::text

#endif
