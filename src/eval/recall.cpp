#include "eval/recall.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/philox.h"

namespace octet::eval {
namespace {

constexpr std::string_view kFirstNames[] = {"Yusuf", "Clara", "Tomas", "Ingrid", "Mateo",
                                            "Aisha", "Pavel", "Noemi", "Hugo",   "Leila"};
constexpr std::string_view kLastNames[] = {"Park",   "Novak",  "Silva", "Okafor", "Lind",
                                           "Moreau", "Tanaka", "Weber", "Castro", "Ahmed"};
constexpr std::string_view kVerbs[] = {"load",  "merge", "count", "parse", "check",
                                       "build", "write", "split", "store", "trace"};
constexpr std::string_view kNouns[] = {"record", "buffer", "header", "window", "branch",
                                       "ticket", "ledger", "vector", "signal", "bundle"};
constexpr std::string_view kPlaces[] = {"the lake",    "the market", "the old mill", "the museum",
                                        "the harbour", "the park",   "the library",  "the bakery"};
constexpr std::string_view kThings[] = {"a red bicycle",  "two loaves of bread", "a wet dog",
                                        "an open window", "a street musician",   "three herons",
                                        "a broken clock", "a very long queue"};
// More than five digits can take, in any way to cut them.
constexpr int kAnswerTokens = 10;
constexpr int kKeys = 8, kValues = 4;
constexpr int kTurns = 50;
constexpr text::EncodeOptions kPlain{.add_special_tokens = false, .parse_special = false};

template <size_t N>
std::string_view pick(const std::string_view (&names)[N], Philox& random) {
  return names[random.bits() % N];
}

std::string name_from(Philox& random) {
  // One after the other: the order of evaluation of arguments is not fixed.
  const std::string_view first = pick(kFirstNames, random);
  return fmt::format("{} {}", first, pick(kLastNames, random));
}

std::string code_from(Philox& random) {
  return fmt::format("{}", 10000 + random.bits() % 90000);
}

// `count` different ones.
std::vector<std::string> different(int count, Philox& random, std::string (*make)(Philox&)) {
  std::vector<std::string> all;
  while (static_cast<int>(all.size()) < count) {
    std::string one = make(random);
    if (std::ranges::find(all, one) == all.end()) all.push_back(std::move(one));
  }
  return all;
}

// Where text may be split for a fact to stand on its own line: after the last line break at or
// before `at`; `at` itself where there is none.
size_t line_start(const text::Tokenizer& tokenizer, std::span<const int32_t> ids, size_t at) {
  for (size_t i = at; i > 0; --i) {
    if (tokenizer.token_bytes(ids[i - 1]).ends_with('\n')) return i;
  }
  return at;
}

void append(std::vector<int32_t>& ids, std::span<const int32_t> more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// `count` tokens of the haystack from `first` on, round and round.
std::vector<int32_t> piece_of(std::span<const int32_t> haystack, size_t first, size_t count) {
  std::vector<int32_t> piece;
  piece.reserve(count);
  for (size_t i = 0; i < count; ++i) piece.push_back(haystack[(first + i) % haystack.size()]);
  return piece;
}

// What a case hides, and how it asks.
struct Plan {
  std::vector<std::string> facts;  // the first is the one that `depth` is of
  std::string question;
  std::vector<std::string> answers;
  int max_tokens = kAnswerTokens;
};

std::string fact_of(std::string_view name, std::string_view code) {
  return fmt::format("The secret code of {} is {}.\n", name, code);
}

std::string question_about(std::string_view name) {
  return fmt::format(
      "\n\nQuestion: What is the secret code of {0}?\nAnswer: The secret code of {0} is", name);
}

Plan plan_of(RecallKind kind, Philox& random) {
  if (kind == RecallKind::needle) {
    const std::string name = name_from(random), code = code_from(random);
    return {{fact_of(name, code)}, question_about(name), {code}};
  }
  if (kind == RecallKind::multi_key) {
    const auto names = different(kKeys, random, name_from);
    const auto codes = different(kKeys, random, code_from);
    Plan plan{{}, question_about(names[0]), {codes[0]}};
    for (int i = 0; i < kKeys; ++i) {
      plan.facts.push_back(fact_of(names[static_cast<size_t>(i)], codes[static_cast<size_t>(i)]));
    }
    return plan;
  }
  const std::string name = name_from(random);
  Plan plan{.question = fmt::format("\n\nQuestion: What are all the secret codes of {0}?\nAnswer: "
                                    "The {1} secret codes of {0} are",
                                    name, kValues),
            .answers = different(kValues, random, code_from),
            .max_tokens = kValues * (kAnswerTokens + 2)};
  for (const std::string& code : plan.answers) {
    plan.facts.push_back(fmt::format("One of the secret codes of {} is {}.\n", name, code));
  }
  return plan;
}

void require_room(int64_t length, int64_t fixed) {
  if (length > fixed) return;
  throw Error({.what = "too short for a fact and its question",
               .where = "--lengths",
               .value = fmt::format("{}", length),
               .accepted = fmt::format("at least {}", fixed + 1)});
}

// Facts in a piece of the haystack: the first at `depth`, the others anywhere.
RecallCase hide(const Plan& plan, const text::Tokenizer& tokenizer, std::span<const int32_t> hay,
                int64_t length, double depth, Philox& random) {
  const std::optional<int32_t> bos = tokenizer.bos_id();
  std::vector<std::vector<int32_t>> facts;
  auto fixed = static_cast<int64_t>(bos ? 1 : 0) + plan.max_tokens;
  for (const std::string& fact : plan.facts) {
    facts.push_back(tokenizer.encode(fact, kPlain));
    fixed += static_cast<int64_t>(facts.back().size());
  }
  const std::vector<int32_t> question = tokenizer.encode(plan.question, kPlain);
  fixed += static_cast<int64_t>(question.size());
  require_room(length, fixed);
  const auto room = static_cast<size_t>(length - fixed);
  const std::vector<int32_t> piece = piece_of(hay, random.bits() % hay.size(), room);
  std::vector<std::pair<size_t, size_t>> places;  // in the piece, of each fact
  for (size_t i = 0; i < facts.size(); ++i) {
    const double where = i == 0 ? depth : static_cast<double>(random.uniform());
    places.emplace_back(
        line_start(tokenizer, piece, static_cast<size_t>(where * static_cast<double>(room))), i);
  }
  std::ranges::sort(places);
  RecallCase one{.answers = plan.answers, .depth = depth, .max_tokens = plan.max_tokens};
  if (bos) one.prompt.push_back(*bos);
  size_t done = 0;
  for (const auto& [place, fact] : places) {
    append(one.prompt, std::span(piece).subspan(done, place - done));
    append(one.prompt, facts[fact]);
    done = place;
  }
  append(one.prompt, std::span(piece).subspan(done));
  append(one.prompt, question);
  return one;
}

// A text that is made of parts, one of which holds the fact, as long as it fits.
struct Parts {
  std::string head;                // before all
  std::vector<std::string> parts;  // fillings
  std::string fact, question, answer;
};

// A function up to the place where its constant stands.
std::string function_head(std::string_view verb, std::string_view noun, int64_t id) {
  return fmt::format(
      "def {0}_{1}_{2}(items):\n    \"\"\"Keeps the items above the limit of a {1}.\"\"\"\n"
      "    limit =",
      verb, noun, id);
}

Parts code_parts(int64_t count, Philox& random) {
  Parts made{.head = "\"\"\"Filters, each with a limit of its own.\"\"\"\n\n\n"};
  for (int64_t i = 0; i <= count; ++i) {
    const std::string_view verb = pick(kVerbs, random);
    const std::string head = function_head(verb, pick(kNouns, random), i);
    const std::string number = code_from(random);
    std::string function = fmt::format(
        "{} {}\n    kept = [item for item in items if item > limit]\n    return kept[:{}]\n\n\n",
        head, number, 1 + random.bits() % 9);
    if (i > 0) {
      made.parts.push_back(std::move(function));
      continue;
    }
    made.fact = std::move(function);
    made.answer = number;
    made.question = "# One of the functions above, once more:\n" + head;
  }
  return made;
}

Parts dialogue_parts(int64_t count, Philox& random) {
  const std::string name = name_from(random), code = code_from(random);
  Parts made{.head = "A conversation between a user and an assistant.\n\n",
             .fact = fmt::format("User: By the way, the locker number of {} is {}. Please keep it "
                                 "in mind.\nAssistant: I will remember it.\n",
                                 name, code),
             .question = fmt::format("User: What was the locker number of {0}?\nAssistant: The "
                                     "locker number of {0} is",
                                     name),
             .answer = code};
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view place = pick(kPlaces, random);
    const std::string_view thing = pick(kThings, random);
    const std::string_view other = pick(kPlaces, random);
    made.parts.push_back(fmt::format(
        "User: On my way to {} I saw {}. It was {} minutes from {}.\nAssistant: That sounds like a "
        "good walk. Did you stay at {} for long?\n",
        place, thing, 2 + random.bits() % 50, other, place));
  }
  return made;
}

// As many parts as fit, the fact among them at `depth`.
RecallCase join(const Parts& made, const text::Tokenizer& tokenizer, int64_t length, double depth) {
  const std::optional<int32_t> bos = tokenizer.bos_id();
  const auto encode = [&](const std::string& text) { return tokenizer.encode(text, kPlain); };
  const std::vector<int32_t> head = encode(made.head), fact = encode(made.fact),
                             question = encode(made.question);
  const auto fixed = static_cast<int64_t>(head.size() + fact.size() + question.size()) +
                     (bos ? 1 : 0) + kAnswerTokens;
  require_room(length, fixed);
  std::vector<std::vector<int32_t>> parts;
  int64_t room = length - fixed;
  for (const std::string& text : made.parts) {
    std::vector<int32_t> part = encode(text);
    room -= static_cast<int64_t>(part.size());
    if (room < 0) break;
    parts.push_back(std::move(part));
  }
  RecallCase one{.answers = {made.answer}, .depth = depth};
  if (bos) one.prompt.push_back(*bos);
  append(one.prompt, head);
  const auto before = static_cast<size_t>(depth * static_cast<double>(parts.size()) + 0.5);
  for (size_t i = 0; i <= parts.size(); ++i) {
    if (i == before) append(one.prompt, fact);
    if (i < parts.size()) append(one.prompt, parts[i]);
  }
  append(one.prompt, question);
  return one;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The numbers of a text, digit by digit as they stand.
std::vector<std::string> numbers_of(std::string_view text) {
  std::vector<std::string> numbers;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end > at) numbers.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return numbers;
}

}  // namespace

std::string_view name_of(RecallKind kind) {
  switch (kind) {
    case RecallKind::needle:
      return "needle";
    case RecallKind::multi_key:
      return "multi_key";
    case RecallKind::multi_value:
      return "multi_value";
    case RecallKind::code:
      return "code";
    case RecallKind::dialogue:
      return "dialogue";
  }
  throw Fault("not a RecallKind");
}

RecallKind parse_recall_kind(std::string_view text) {
  for (const RecallKind kind : kRecallKinds) {
    if (text == name_of(kind)) return kind;
  }
  throw Error({.what = "unknown kind of recall",
               .where = "--kind",
               .value = std::string(text),
               .accepted = "needle, multi_key, multi_value, code, dialogue"});
}

std::vector<RecallCase> recall_cases(RecallKind kind, const text::Tokenizer& tokenizer,
                                     std::string_view haystack, int64_t length, int64_t count,
                                     uint64_t seed) {
  const bool hidden = kind != RecallKind::code && kind != RecallKind::dialogue;
  const std::vector<int32_t> hay =
      hidden ? tokenizer.encode(haystack, kPlain) : std::vector<int32_t>();
  if (hidden && hay.empty()) {
    throw Error(
        {.what = "the text is empty", .where = "--text", .accepted = "a text to hide facts in"});
  }
  std::vector<RecallCase> cases;
  Philox random(seed, static_cast<uint64_t>(length));
  for (int64_t i = 0; i < count; ++i) {
    const double depth = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.5;
    if (hidden) {
      cases.push_back(hide(plan_of(kind, random), tokenizer, hay, length, depth, random));
    } else if (kind == RecallKind::code) {
      // No function has fewer than 30 tokens.
      cases.push_back(join(code_parts(length / 30, random), tokenizer, length, depth));
    } else {
      cases.push_back(join(dialogue_parts(kTurns, random), tokenizer, length, depth));
    }
  }
  return cases;
}

double recall_score(const RecallCase& one, std::string_view said) {
  const std::vector<std::string> numbers = numbers_of(said);
  if (one.answers.size() == 1) {
    // What stands before the number makes it another answer.
    return said.starts_with(" " + one.answers[0]) && numbers.front() == one.answers[0] ? 1 : 0;
  }
  double found = 0;
  for (const std::string& answer : one.answers) {
    if (std::ranges::find(numbers, answer) != numbers.end()) found += 1;
  }
  return found / static_cast<double>(one.answers.size());
}

}  // namespace octet::eval
