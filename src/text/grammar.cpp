#include "text/grammar.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <list>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar_engine.h"
#include "text/schema_keywords.h"
#include "text/schema_refs.h"

namespace octet::text {
namespace {

// Of this thread, in seconds: what others do meanwhile is not charged.
double processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// "root ::= "yes" | "no"", of a JSON array.
std::string choice_grammar(const std::string& text, const std::string& where) {
  const auto choices = parse_json<OrderedJson>(text, where);
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) grammar += " | ";
    grammar += ebnf_literal(choices[i].get<std::string>());
  }
  return grammar;
}

// What the engine would compute with wrapped around, or written as broken UTF-8: a count that does
// not fit into 32 bits, a surrogate, a code point that there is not. "" if there is none.
std::string unsupported_in_regex(std::string_view regex) {
  constexpr int64_t most_count = 65535;
  const auto number = [&](size_t from, size_t most, int base) {
    int64_t value = 0;
    size_t at = from;
    for (; at < regex.size() && at - from < most; ++at) {
      const char c = regex[at];
      const int digit = c >= '0' && c <= '9'                 ? c - '0'
                        : base == 16 && c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : base == 16 && c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                             : -1;
      if (digit < 0) break;
      value = std::min<int64_t>(value * base + digit, int64_t{1} << 40);
    }
    return std::pair(value, at);
  };
  for (size_t i = 0; i < regex.size(); ++i) {
    const char next = i + 1 < regex.size() ? regex[i + 1] : '\0';
    if (regex[i] == '\\') {
      if (next == 'u' || next == 'U' || next == 'x') {
        const bool braced = i + 2 < regex.size() && regex[i + 2] == '{';
        const size_t digits = braced ? 16 : next == 'x' ? 2 : next == 'u' ? 4 : 8;
        const int64_t code = number(i + (braced ? 3 : 2), digits, 16).first;
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
          return fmt::format("the code point {:X}, which is no character", code);
        }
      }
      ++i;
    } else if (regex[i] == '{') {
      const auto [low, comma] = number(i + 1, 20, 10);
      const bool two = comma < regex.size() && regex[comma] == ',';
      const int64_t high = two ? number(comma + 1, 20, 10).first : low;
      if (std::max(low, high) > most_count) {
        return fmt::format("a count of more than {}", most_count);
      }
    }
  }
  return "";
}

std::string accepted_of(GrammarSource::Kind kind) {
  switch (kind) {
    case GrammarSource::Kind::json_object:
    case GrammarSource::Kind::json_schema:
      return "a JSON schema that some value satisfies, of the keywords that the documentation "
             "lists";
    case GrammarSource::Kind::regex:
      return "a regular expression that some text matches, without look-around, references to "
             "groups and classes by property";
    case GrammarSource::Kind::choice:
      return "an array of strings";
    case GrammarSource::Kind::ebnf:
      break;
  }
  return "rules in the notation of GBNF, such as root ::= \"yes\" | \"no\", the first called root";
}

void refuse_regex(const std::string& regex, const std::string& where) {
  const std::string found = unsupported_in_regex(regex);
  if (found.empty()) return;
  throw Error({.what = "structured output cannot hold this part of the expression",
               .where = where,
               .value = found,
               .accepted = accepted_of(GrammarSource::Kind::regex)});
}

size_t bytes_of(const GrammarSource& source) {
  return source.text.size() + source.before.size() + source.after.size();
}

// The text that the engine reads, of a source that it can hold.
std::string checked_text(const GrammarSource& source, size_t most_bytes, const std::string& where) {
  const size_t bytes = bytes_of(source);
  if (bytes > most_bytes) {
    throw Error({.what = "too long for structured output",
                 .where = where,
                 .value = fmt::format("{} bytes", bytes),
                 .accepted = fmt::format("at most {}", most_bytes)});
  }
  if (source.text.find('\0') != source.text.npos) {
    throw Error({.what = "a NUL character in a grammar", .where = where});
  }
  if (source.kind == GrammarSource::Kind::regex) refuse_regex(source.text, where);
  if (source.kind == GrammarSource::Kind::choice) return choice_grammar(source.text, where);
  if (source.kind != GrammarSource::Kind::json_schema) return source.text;
  const auto schema = with_plain_refs(parse_json<OrderedJson>(source.text, where), where);
  for (const std::string& pattern : patterns_of(schema)) refuse_regex(pattern, where);
  const std::string found = unsupported_keyword(schema);
  if (found.empty()) return dump_json(schema);
  throw Error({.what = "structured output cannot hold this part of the schema",
               .where = where,
               .value = found,
               .accepted = accepted_of(source.kind)});
}

// In the sandbox.
void check_patterns(const OrderedJson& schema) {
  for (const std::string& pattern : patterns_of(schema)) {
    if (GrammarEngine::fits_a_string(pattern)) continue;
    throw std::runtime_error(
        fmt::format("the pattern {} cannot be kept inside a string; accepted: printable ASCII "
                    "without look-around",
                    dump_json(OrderedJson(shortened(pattern, 100)))));
  }
}

GrammarEngine::Form form_of(GrammarSource::Kind kind) {
  switch (kind) {
    case GrammarSource::Kind::json_object:
      return GrammarEngine::Form::json_object;
    case GrammarSource::Kind::json_schema:
      return GrammarEngine::Form::json_schema;
    case GrammarSource::Kind::regex:
      return GrammarEngine::Form::regex;
    case GrammarSource::Kind::choice:
    case GrammarSource::Kind::ebnf:
      break;
  }
  return GrammarEngine::Form::ebnf;
}

// Why there is no grammar, without a place.
ErrorParts refusal_of(const Sandbox::Result& result, const Sandbox::Limits& limits,
                      GrammarSource::Kind kind) {
  std::string value, accepted;
  switch (result.kind) {
    case Sandbox::Result::refused:
      value = shortened(result.text, 300);
      accepted = accepted_of(kind);
      break;
    case Sandbox::Result::out_of_time:
      value = fmt::format("making it takes more than {} s", limits.cpu_seconds);
      accepted = "fewer or smaller repeats, enumerations and alternatives";
      break;
    default:
      value = "making it takes too much memory";
      accepted = "fewer or smaller repeats, enumerations and alternatives, less nesting";
  }
  return {.what = "no grammar can be made of this", .value = value, .accepted = accepted};
}

// Gives back to the system what reading a large text took, which else stays with the allocator of
// the thread that read it.
void release(std::string& text) {
  constexpr size_t large = size_t{256} << 10;
  const bool was_large = text.size() > large;
  text = {};
  if (was_large) malloc_trim(0);
}

[[noreturn]] void refuse(ErrorParts parts, const std::string& where) {
  parts.where = where;
  throw Error(std::move(parts));
}

// Sandboxes for one job each at a time.
class SandboxPool {
 public:
  SandboxPool(const Sandbox::Job& job, const GrammarLimits& limits) {
    for (int i = 0; i < std::max(1, limits.sandboxes); ++i) {
      all_.push_back(std::make_unique<Sandbox>(job, limits.sandbox));
      free_.push_back(all_.back().get());
    }
  }

  // Waits for a free one.
  Sandbox::Result run(std::string_view input) {
    Sandbox* one = nullptr;
    {
      std::unique_lock lock(mutex_);
      one_is_free_.wait(lock, [&] { return !free_.empty(); });
      one = free_.back();
      free_.pop_back();
    }
    const auto give_back = [&](Sandbox* sandbox) {
      const std::lock_guard lock(mutex_);
      free_.push_back(sandbox);
      one_is_free_.notify_one();
    };
    const std::unique_ptr<Sandbox, decltype(give_back)> held(one, give_back);
    return one->run(input);
  }

 private:
  std::vector<std::unique_ptr<Sandbox>> all_;
  std::mutex mutex_;  // of what follows
  std::condition_variable one_is_free_;
  std::vector<Sandbox*> free_;
};

}  // namespace

struct GrammarState::Impl {
  Impl(std::shared_ptr<const CompiledGrammar> grammar, Limits with)
      : matcher(std::move(grammar)),
        limits(with),
        mask(static_cast<size_t>(matcher.vocab() + 31) / 32) {}

  GrammarMatcher matcher;
  Limits limits;
  std::vector<int32_t> mask;  // of the next token, once it is `filled`
  bool filled = false, restricts = false;
  bool finished = false;
  bool given_up = false;  // nothing is allowed any more
  int64_t tokens = 0;
  double seconds = 0;

  // Runs `work`, charges its time, and gives up where it is too much.
  template <class Work>
  void charge(Work work) {
    const double begin = processor_time();
    try {
      work();
    } catch (const std::exception&) {
      given_up = true;
    }
    seconds += processor_time() - begin;
    given_up |= seconds > limits.first_s + limits.per_token_s * static_cast<double>(tokens);
  }

  void fill() {
    if (filled) return;
    charge([&] { restricts = matcher.fill(mask); });
    filled = true;
  }

  bool only_ends() const {
    std::vector<int32_t> rest = mask;
    for (const int32_t id : matcher.end_ids()) {
      rest[static_cast<size_t>(id) / 32] &= ~static_cast<int32_t>(1U << (id % 32));
    }
    return std::ranges::all_of(rest, [](int32_t word) { return word == 0; });
  }
};

GrammarState::GrammarState(std::shared_ptr<const CompiledGrammar> grammar)
    : GrammarState(std::move(grammar), Limits{}) {}

GrammarState::GrammarState(std::shared_ptr<const CompiledGrammar> grammar, Limits limits)
    : impl_(std::make_unique<Impl>(std::move(grammar), limits)) {}

GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

bool GrammarState::fill(std::span<int32_t> mask) {
  impl_->fill();
  if (impl_->given_up) {
    std::ranges::fill(mask, 0);
    return true;
  }
  if (!impl_->restricts) return false;
  std::ranges::copy(impl_->mask, mask.begin());
  return true;
}

bool GrammarState::accept(int32_t token) {
  Impl& my = *impl_;
  if (my.given_up) return false;
  bool accepted = false, complete = false;
  my.charge([&] {
    accepted = my.matcher.accept(token);
    complete = my.matcher.complete();
  });
  if (!accepted) return false;
  ++my.tokens;
  my.filled = false;
  my.finished = my.matcher.ended();
  // Whether more can follow is seen in the next mask, which is wanted soon anyway.
  if (!my.finished && complete) {
    my.fill();
    my.finished = my.restricts && !my.given_up && my.only_ends();
  }
  return true;
}

bool GrammarState::finished() const {
  return impl_->finished;
}

bool GrammarState::given_up() const {
  return impl_->given_up;
}

int64_t GrammarState::tokens() const {
  return impl_->tokens;
}

double GrammarState::seconds() const {
  return impl_->seconds;
}

struct GrammarCompiler::Impl {
  struct Engines {
    GrammarEngine texts, json;
    const GrammarEngine& of(GrammarEngine::Form form) const {
      using Form = GrammarEngine::Form;
      return form == Form::json_object || form == Form::json_schema ? json : texts;
    }
  };

  Impl(const std::vector<std::string>& tokens, const std::vector<int32_t>& end_ids,
       const GrammarLimits& with)
      : limits(with),
        engines(new Engines{{tokens, end_ids}, {without_controls(tokens), end_ids}}),
        sandboxes([engines = engines](std::string_view input) { return compile(*engines, input); },
                  with) {}

  // JSON needs none of them but the line feed, and has none inside strings, where the engine would
  // let some pass (a string with a maxLength).
  static std::vector<std::string> without_controls(std::vector<std::string> tokens) {
    const auto is_control = [](unsigned char c) { return c < 0x20 && c != '\n'; };
    for (std::string& token : tokens) {
      if (std::ranges::any_of(token, is_control)) token.clear();
    }
    return tokens;
  }

  // In the sandbox.
  static std::string compile(const Engines& engines, std::string_view input) {
    const auto request = OrderedJson::parse(input);
    const auto form = static_cast<GrammarEngine::Form>(request.at(0).get<int>());
    if (form == GrammarEngine::Form::json_schema) {
      check_patterns(OrderedJson::parse(request.at(1).get<std::string>()));
    }
    return engines.of(form).compile(form, request.at(1).get<std::string>(),
                                    request.at(2).get<std::string>(),
                                    request.at(3).get<std::string>());
  }

  struct Kept {
    GrammarSource source;
    std::shared_ptr<const CompiledGrammar> grammar;  // null: none can be made of it
    ErrorParts refusal;                              // then
    size_t bytes;
  };

  // The entry of a source, which is then the last one used; null if there is none. Under the lock.
  const Kept* find(const GrammarSource& source) {
    const auto found = std::ranges::find(kept, source, &Kept::source);
    if (found == kept.end()) return nullptr;
    kept.splice(kept.begin(), kept, found);
    return &*found;
  }

  // What is known of a source: its grammar, or null; throws why there is none.
  std::shared_ptr<const CompiledGrammar> known(const GrammarSource& source,
                                               const std::string& where) {
    const std::lock_guard lock(mutex);
    const Kept* found = find(source);
    if (found && !found->grammar) refuse(found->refusal, where);
    return found ? found->grammar : nullptr;
  }

  void keep(Kept entry) {
    const std::lock_guard lock(mutex);
    if (find(entry.source)) return;  // two came at a time
    kept_bytes += entry.bytes;
    kept.push_front(std::move(entry));
    while (kept_bytes > limits.cache_bytes && kept.size() > 1) {
      kept_bytes -= kept.back().bytes;
      kept.pop_back();
    }
  }

  GrammarLimits limits;
  std::shared_ptr<const Engines> engines;
  SandboxPool sandboxes;
  std::mutex mutex;      // of what follows; not held while one is compiled
  std::list<Kept> kept;  // the last one used first
  size_t kept_bytes = 0;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab,
                                 std::span<const int32_t> end_ids, const GrammarLimits& limits) {
  if (!has_grammar_engine()) {
    throw Error({.what = "this build of Octet has no structured output",
                 .fix = "run scripts/setup.sh where PyPI can be reached, and build again"});
  }
  std::vector<std::string> tokens(static_cast<size_t>(vocab));
  const auto known = static_cast<size_t>(std::min<int64_t>(vocab, tokenizer.size()));
  for (size_t id = 0; id < known; ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!tokenizer.is_special(token)) tokens[id] = tokenizer.token_bytes(token);
  }
  std::vector<int32_t> ends;
  for (const int32_t id : end_ids) {
    if (id >= 0 && id < vocab) ends.push_back(id);
  }
  impl_ = std::make_unique<Impl>(tokens, ends, limits);
}

GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const CompiledGrammar> GrammarCompiler::find(const GrammarSource& source,
                                                             const std::string& where) {
  return impl_->known(source, where);
}

std::shared_ptr<const CompiledGrammar> GrammarCompiler::compile(const GrammarSource& source,
                                                                const std::string& where) {
  Impl& my = *impl_;
  if (auto kept = my.known(source, where)) return kept;
  const std::string text = checked_text(source, my.limits.source_bytes, where);
  const GrammarEngine::Form form = form_of(source.kind);
  const OrderedJson request =
      OrderedJson::array({static_cast<int>(form), text, source.before, source.after});
  Sandbox::Result result = my.sandboxes.run(dump_json(request));
  if (result.kind == Sandbox::Result::too_slow) return nullptr;
  if (result.kind != Sandbox::Result::done) {
    const ErrorParts refusal = refusal_of(result, my.limits.sandbox, source.kind);
    my.keep({source, nullptr, refusal, bytes_of(source)});
    refuse(refusal, where);
  }
  auto grammar = my.engines->of(form).load(result.text);
  // In memory it is a tenth to a third smaller than as a text. (The engine's own count leaves out
  // its automata, which may be nine tenths of it.)
  const size_t bytes = bytes_of(source) + result.text.size();
  release(result.text);
  my.keep({source, grammar, {}, bytes});
  return grammar;
}

}  // namespace octet::text
