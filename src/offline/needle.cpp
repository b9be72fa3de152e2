#include "offline/needle.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace octet::offline {
namespace {

constexpr std::string_view kFirstNames[] = {"Yusuf", "Clara", "Tomas", "Ingrid", "Mateo",
                                            "Aisha", "Pavel", "Noemi", "Hugo",   "Leila"};
constexpr std::string_view kLastNames[] = {"Park",   "Novak",  "Silva", "Okafor", "Lind",
                                           "Moreau", "Tanaka", "Weber", "Castro", "Ahmed"};
// More than five digits can take, in any way to cut them.
constexpr int kAnswerTokens = 10;

template <size_t N>
std::string_view pick(const std::string_view (&names)[N], Philox& random) {
  return names[random.bits() % N];
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

}  // namespace

std::vector<NeedleCase> needle_cases(const text::Tokenizer& tokenizer, std::string_view haystack,
                                     int64_t length, int64_t count, uint64_t seed) {
  const text::EncodeOptions plain{.add_special_tokens = false, .parse_special = false};
  const std::vector<int32_t> hay = tokenizer.encode(haystack, plain);
  if (hay.empty())
    throw Error(
        {.what = "the text is empty", .where = "--text", .accepted = "a text to hide facts in"});
  const std::optional<int32_t> bos = tokenizer.bos_id();

  std::vector<NeedleCase> cases;
  Philox random(seed, static_cast<uint64_t>(length));
  for (int64_t i = 0; i < count; ++i) {
    const std::string name =
        fmt::format("{} {}", pick(kFirstNames, random), pick(kLastNames, random));
    const uint32_t code = 10000 + random.bits() % 90000;
    const auto fact =
        tokenizer.encode(fmt::format("The secret code of {} is {}.\n", name, code), plain);
    const auto question = tokenizer.encode(
        fmt::format("\n\nQuestion: What is the secret code of {0}?\nAnswer: The secret code of {0} "
                    "is",
                    name),
        plain);
    const auto fixed = static_cast<int64_t>(fact.size() + question.size() + (bos ? 1 : 0));
    if (length <= fixed + kAnswerTokens) {
      throw Error({.what = "too short for a fact and its question",
                   .where = "--lengths",
                   .value = fmt::format("{}", length),
                   .accepted = fmt::format("at least {}", fixed + kAnswerTokens + 1)});
    }
    NeedleCase one;
    one.answer = fmt::format("{}", code);
    one.depth = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.5;
    // The answer, too, must fit into `length`.
    const auto room = static_cast<size_t>(length - fixed - kAnswerTokens);
    const std::vector<int32_t> piece = piece_of(hay, random.bits() % hay.size(), room);
    const size_t at =
        line_start(tokenizer, piece, static_cast<size_t>(one.depth * static_cast<double>(room)));
    if (bos) one.prompt.push_back(*bos);
    append(one.prompt, std::span(piece).first(at));
    append(one.prompt, fact);
    append(one.prompt, std::span(piece).subspan(at));
    append(one.prompt, question);
    cases.push_back(std::move(one));
  }
  return cases;
}

NeedleResult run_needle(const Subject& subject, const text::Tokenizer& tokenizer, int64_t length,
                        std::span<const NeedleCase> cases, const Advance& advance) {
  engine::SessionOptions options = session_options(subject, length);
  options.logits_rows = 1;
  engine::Session session(subject.model, subject.backend, options);
  NeedleResult result{.length = length, .count = static_cast<int64_t>(cases.size())};
  for (const NeedleCase& one : cases) {
    session.reset();
    std::vector<int32_t> said;
    const auto say = [&](const Tensor& logits) {
      const std::span row(logits.as<float>(), static_cast<size_t>(logits.cols()));
      require_finite(row, "model", fmt::format("case {}", &one - cases.data()),
                     static_cast<int64_t>(one.prompt.size() + said.size()) - 1);
      said.push_back(summarize(row).best);
    };
    session.extend(0, one.prompt, engine::Wanted::last,
                   [&](int64_t, const Tensor& logits) { say(logits); });
    while (static_cast<int>(said.size()) < kAnswerTokens) {
      say(session.decode({&said.back(), 1}));
    }
    const std::string text = tokenizer.decode(said, true);
    const std::string wanted = " " + one.answer;
    const bool more_digits =
        text.size() > wanted.size() && text[wanted.size()] >= '0' && text[wanted.size()] <= '9';
    if (text.starts_with(wanted) && !more_digits) {
      ++result.found;
    } else {
      result.misses.push_back(
          fmt::format("depth {:.2f}: wanted '{}', got '{}'", one.depth, wanted, text));
    }
    if (advance) advance(static_cast<int64_t>(one.prompt.size()));
  }
  return result;
}

}  // namespace octet::offline
