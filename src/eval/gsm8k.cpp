#include "eval/gsm8k.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace octet::eval {
namespace {

constexpr std::string_view kMark = "#### ", kInvalid = "[invalid]";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string question_of(const Gsm8kProblem& problem) {
  return "Question: " + problem.question + "\nAnswer:";
}

// The match of (-?[$0-9.,]{2,})|(-?[0-9]+) that begins at `at`; empty if there is none. The first
// alternative wins where both match, as in a regex that tries them in order.
std::string_view number_at(std::string_view text, size_t at) {
  const size_t first = at + (text[at] == '-' ? 1 : 0);
  size_t end = first;
  while (end < text.size() &&
         (is_digit(text[end]) || text[end] == '$' || text[end] == '.' || text[end] == ',')) {
    ++end;
  }
  if (end - first >= 2) return text.substr(at, end - at);
  return end == first + 1 && is_digit(text[first]) ? text.substr(at, end - at) : std::string_view();
}

// Without what the task ignores: its regexes in their order, then case.
std::string normalized(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (c != ',' && c != '$') kept += c;
  }
  if (const size_t mark = kept.rfind(kMark); mark != kept.npos) kept.erase(0, mark + kMark.size());
  // `\.$` also takes a period before a line break at the end.
  if (kept.ends_with(".\n")) {
    kept.erase(kept.size() - 2, 1);
  } else if (kept.ends_with('.')) {
    kept.pop_back();
  }
  std::ranges::transform(kept, kept.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return kept;
}

}  // namespace

Gsm8kSet read_gsm8k(const std::filesystem::path& path) {
  Gsm8kSet set;
  set.rows = read_json_rows(path, [&](const JsonView& row) {
    Gsm8kProblem problem{row.get<std::string>("question"), row.get<std::string>("answer"),
                         set.problems.size()};
    if (problem.answer.find(kMark) == problem.answer.npos) {
      row.refuse("answer", "the answer has no number", "a text with \"#### NUMBER\" at its end");
    }
    set.problems.push_back(std::move(problem));
  });
  return set;
}

std::string gsm8k_prompt(const Gsm8kProblem& problem, const std::vector<Gsm8kProblem>& examples) {
  std::string text;
  for (const Gsm8kProblem& example : examples) {
    text += question_of(example) + " " + example.answer + "\n\n";
  }
  return text + question_of(problem);
}

std::vector<std::string> gsm8k_stops() {
  return {"Question:", "</s>", "<|im_end|>"};
}

std::string strict_match(std::string_view answer) {
  for (size_t at = answer.find(kMark); at != answer.npos; at = answer.find(kMark, at + 1)) {
    const size_t first = at + kMark.size();
    size_t end = first + (first < answer.size() && answer[first] == '-' ? 1 : 0);
    const size_t digits = end;
    while (end < answer.size() &&
           (is_digit(answer[end]) || answer[end] == '.' || answer[end] == ',')) {
      ++end;
    }
    if (end > digits) return std::string(answer.substr(first, end - first));
  }
  return std::string(kInvalid);
}

std::string flexible_extract(std::string_view answer) {
  std::string_view last = kInvalid;
  for (size_t at = 0; at < answer.size();) {
    const std::string_view number = number_at(answer, at);
    if (!number.empty()) last = number;
    at += std::max<size_t>(number.size(), 1);
  }
  return std::string(last);
}

bool exact_match(std::string_view found, std::string_view wanted) {
  return normalized(found) == normalized(wanted);
}

}  // namespace octet::eval
