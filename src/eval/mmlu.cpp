#include "eval/mmlu.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace octet::eval {
namespace {

constexpr int kChoices = 4;

int letter_of(const std::string& text, const JsonView* row) {
  if (text.size() == 1 && text[0] >= 'A' && text[0] < 'A' + kChoices) return text[0] - 'A';
  if (row) row->refuse("answer", "the right answer is a letter or a number", "A to D, or 0 to 3");
  throw Error({.what = "the right answer is a letter", .value = text, .accepted = "A to D"});
}

MmluQuestion question_of(const JsonView& row) {
  MmluQuestion q{.subject = row.get<std::string>("subject"),
                 .question = row.get<std::string>("question"),
                 .choices = row.get<std::vector<std::string>>("choices")};
  if (q.choices.size() != kChoices) {
    row.refuse("choices", "a question has four choices", "four texts");
  }
  q.answer = row.json()["answer"].is_string()
                 ? letter_of(row.get<std::string>("answer"), &row)
                 : static_cast<int>(row.integer("answer", 0, kChoices - 1));
  return q;
}

// "anatomy" for .../anatomy_test.csv; "high school physics" keeps its underscores.
std::string subject_of(const std::filesystem::path& path) {
  std::string name = path.stem().string();
  for (const std::string_view part : {"_test", "_dev", "_val"}) {
    if (name.ends_with(part)) name.resize(name.size() - part.size());
  }
  return name;
}

void add_csv(MmluSet& set, const std::filesystem::path& path) {
  int64_t line = 0;
  const ReadRows rows = read_csv_rows(path, [&](const std::vector<std::string>& fields) {
    ++line;
    if (fields.size() != kChoices + 2) {
      throw Error({.what = "a record has another number of fields",
                   .where = fmt::format("{}, record {}", path.string(), line),
                   .value = fmt::format("{}", fields.size()),
                   .accepted = "6: question, A, B, C, D, letter"});
    }
    set.questions.push_back({.subject = subject_of(path),
                             .question = fields[0],
                             .choices = {fields.begin() + 1, fields.end() - 1},
                             .answer = letter_of(fields.back(), nullptr)});
  });
  set.rows.used += rows.used;
  set.rows.broken += rows.broken;
  set.rows.faults.insert(set.rows.faults.end(), rows.faults.begin(), rows.faults.end());
}

void add_folder(MmluSet& set, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".csv") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw Error({.what = "the folder has no CSV files",
                 .where = folder.string(),
                 .accepted = "files such as anatomy_test.csv",
                 .fix = "give the folder test/ of the published archive, or a JSONL file"});
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) add_csv(set, file);
}

std::string spaces_for_underscores(std::string text) {
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n\r\f\v");
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\n\r\f\v") + 1 - first));
}

std::string form(const MmluQuestion& q) {
  std::string text = stripped(q.question);
  for (int i = 0; i < kChoices; ++i) {
    text += fmt::format("\n{}. {}", static_cast<char>('A' + i), q.choices[static_cast<size_t>(i)]);
  }
  return text + "\nAnswer:";
}

}  // namespace

MmluSet read_mmlu(const std::filesystem::path& path) {
  MmluSet set;
  if (std::filesystem::is_directory(path)) {
    add_folder(set, path);
  } else if (path.extension() == ".csv") {
    add_csv(set, path);
  } else {
    set.rows = read_json_rows(
        path, [&](const JsonView& row) { set.questions.push_back(question_of(row)); });
  }
  std::ranges::stable_sort(set.questions, {}, &MmluQuestion::subject);
  std::map<std::string, int64_t> counts;
  for (MmluQuestion& q : set.questions) q.number = counts[q.subject]++;
  return set;
}

MmluSet split_examples(MmluSet& set, int count, const std::string& where) {
  MmluSet examples;
  const std::vector<MmluQuestion> all = std::exchange(set.questions, {});
  for (const MmluQuestion& q : all) {
    (q.number < count ? examples : set).questions.push_back(q);
  }
  std::set<std::string> left;
  for (const MmluQuestion& q : set.questions) left.insert(q.subject);
  for (const MmluQuestion& q : examples.questions) {
    if (left.contains(q.subject)) continue;
    throw Error({.what = "a subject has no question left beside its examples",
                 .where = where,
                 .value = q.subject,
                 .accepted = fmt::format("more than {} questions a subject", count),
                 .fix = "give the examples with --few-shot FILE, or take a smaller --shots"});
  }
  return examples;
}

std::string mmlu_prompt(const MmluQuestion& question, const MmluSet& examples, int shots) {
  std::string text =
      fmt::format("The following are multiple choice questions (with answers) about {}.\n\n",
                  spaces_for_underscores(question.subject));
  for (const MmluQuestion& example : examples.questions) {
    if (shots == 0) break;
    if (example.subject != question.subject) continue;
    text += form(example) + mmlu_continuation(example.answer) + "\n\n";
    --shots;
  }
  return text + form(question);
}

std::string mmlu_continuation(int choice) {
  return {' ', static_cast<char>('A' + choice)};
}

int64_t examples_of(const MmluSet& set, const std::string& subject) {
  return std::ranges::count(set.questions, subject, &MmluQuestion::subject);
}

}  // namespace octet::eval
