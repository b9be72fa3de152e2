#include "base/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/atomic_write.h"
#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

template <class T>
struct Inner {
  using type = T;
};
template <class T>
struct Inner<std::optional<T>> {
  using type = T;
};
template <class T>
using InnerOf = typename Inner<T>::type;

template <class T>
constexpr bool is_list = std::is_same_v<T, std::vector<std::string>>;
template <class T>
constexpr bool is_integer = std::is_same_v<T, int> || std::is_same_v<T, int64_t>;

// visit_type(field, f): f(a null pointer to the field's type, without `optional`).
template <class F>
auto visit_type(const OptionTable::Field& field, F f) {
  return std::visit(
      [&](auto* target) {
        return f(static_cast<InnerOf<std::remove_pointer_t<decltype(target)>>*>(nullptr));
      },
      field);
}

bool is_flag(const OptionTable::Field& field) {
  return visit_type(field, []<class T>(T*) { return std::is_same_v<T, bool>; });
}

Json value_of(const OptionTable::Field& field) {
  return std::visit(
      []<class T>(T* target) -> Json {
        if constexpr (std::is_same_v<T, InnerOf<T>>) {
          // A float's shortest digits, not those of the double it converts to.
          if constexpr (std::is_same_v<T, float>) return std::stod(fmt::format("{}", *target));
          return *target;
        } else {
          return target->has_value() ? Json(**target) : Json();
        }
      },
      field);
}

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

// What a value must be, in words: "an integer, 1 to 65535".
std::string accepted_by(const OptionTable::Field& field, const OptionRules& rules) {
  if (!rules.choices.empty()) return fmt::format("{}", fmt::join(rules.choices, ", "));
  std::string text = visit_type(field, []<class T>(T*) -> std::string {
    if (std::is_same_v<T, bool>) return "true or false";
    if (is_integer<T>) return "an integer";
    if (std::is_floating_point_v<T>) return "a number";
    return is_list<T> ? "text, or a list of texts" : "text";
  });
  if (rules.least && rules.most)
    return fmt::format("{}, {} to {}", text, *rules.least, *rules.most);
  if (rules.above) text += fmt::format(", above {}", *rules.above);
  if (rules.least) text += fmt::format(", at least {}", *rules.least);
  if (rules.most) text += fmt::format("{} at most {}", rules.above ? " and" : ",", *rules.most);
  return text;
}

// The words of the command line become JSON of the row's type; what does not convert stays text,
// and assign() refuses it as it refuses the same mistake in a file.
Json from_word(const OptionTable::Field& field, const std::string& word) {
  return visit_type(field, [&]<class T>(T*) -> Json {
    if constexpr (std::is_same_v<T, bool>) {
      if (word == "true" || word == "1") return true;
      if (word == "false" || word == "0") return false;
    } else if constexpr (is_integer<T> || std::is_floating_point_v<T>) {
      std::conditional_t<is_integer<T>, int64_t, double> value{};
      const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), value);
      // JSON has no NaN: as text it is refused as what was typed.
      const bool whole = fault == std::errc() && end == word.data() + word.size();
      if (whole && std::isfinite(static_cast<double>(value))) return value;
    }
    return word;
  });
}

// The element check of strings and lists.
bool is_choice(const std::string& text, const OptionRules& rules) {
  return rules.choices.empty() || std::ranges::find(rules.choices, text) != rules.choices.end();
}

bool in_range(double value, const OptionRules& rules) {
  return std::isfinite(value) && value >= rules.least.value_or(value) &&
         value <= rules.most.value_or(value) && (!rules.above || value > *rules.above);
}

// Reads `json` into `out`; false if its type or value is not accepted.
template <class T>
bool read(const Json& json, const OptionRules& rules, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    out = json.get<bool>();
  } else if constexpr (is_integer<T>) {
    if (!json.is_number_integer()) return false;
    const auto wide = json.get<int64_t>();
    if (json.is_number_unsigned() && wide < 0) return false;  // above 2^63
    if (!std::in_range<T>(wide) || !in_range(static_cast<double>(wide), rules)) return false;
    out = static_cast<T>(wide);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number() || !in_range(json.get<double>(), rules)) return false;
    out = static_cast<T>(json.get<double>());
    return std::isfinite(out);
  } else if constexpr (is_list<T>) {
    T list;
    for (const Json& element : json.is_array() ? json : Json::array({json})) {
      if (!element.is_string() || !is_choice(element.get<std::string>(), rules)) return false;
      list.push_back(element.get<std::string>());
    }
    out = std::move(list);
  } else {
    if (!json.is_string() || !is_choice(json.get<std::string>(), rules)) return false;
    out = json.get<std::string>();
  }
  return true;
}

// The limit of a number's type, said where a row has none of its own and a number was refused.
std::string limit_of(const OptionTable::Field& field) {
  return visit_type(field, []<class T>(T*) -> std::string {
    if constexpr (is_integer<T>) return fmt::format(", at most {}", std::numeric_limits<T>::max());
    return std::is_same_v<T, float> ? ", at most 3.4e38" : "";
  });
}

void assign(const OptionTable::Field& field, const OptionRules& rules, const Json& json,
            const std::string& where) {
  const bool done = std::visit(
      [&]<class T>(T* target) {
        if constexpr (std::is_same_v<T, InnerOf<T>>) {
          return read(json, rules, *target);
        } else {
          InnerOf<T> value{};
          if (!json.is_null() && !read(json, rules, value)) return false;
          *target = json.is_null() ? T() : T(std::move(value));
          return true;
        }
      },
      field);
  if (done) return;
  throw Error({.what = "an option has a bad value",
               .where = where,
               .value = shown(json),
               .accepted = accepted_by(field, rules) +
                           (json.is_number() && !rules.most ? limit_of(field) : "")});
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// `text` in lines of at most `width`, those after the first indented by `indent`.
std::string wrap(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t word = end - at;
    if (column + 1 + word > width && column > indent) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(at, word);
    column += word;
    at = end + 1;
  }
  return out;
}

std::string key_of(std::string_view flag) {
  std::string key(flag.substr(flag.find_first_not_of('-')));
  std::ranges::replace(key, '-', '_');
  return key;
}

std::string facts(const std::string& initial, const OptionTable::Field& field,
                  const OptionRules& rules) {
  std::vector<std::string> parts;
  if (!rules.choices.empty() || rules.least || rules.most || rules.above) {
    parts.push_back(accepted_by(field, rules));
  }
  if (rules.required) parts.emplace_back("required");
  if (initial != "null" && initial != "\"\"" && initial != "[]" && initial != "false") {
    parts.push_back("default " + shown(Json::parse(initial)));
  }
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, "; "));
}

}  // namespace

OptionTable::OptionTable(std::string command, std::string summary)
    : command_(std::move(command)), summary_(std::move(summary)) {}

void OptionTable::group(std::string name) {
  group_ = std::move(name);
}

void OptionTable::insert(Row row) {
  for (const Row& other : rows_) invariant(other.key != row.key, "an option is declared twice");
  row.initial = dump_json(value_of(row.field));
  row.group = group_;
  if (row.metavar.empty()) {
    row.metavar = visit_type(row.field, [&]<class T>(T*) -> std::string {
      if (std::is_same_v<T, bool>) return "";
      if (is_integer<T>) return "N";
      if (std::is_floating_point_v<T>) return "X";
      return row.rules.choices.empty() ? "TEXT" : "NAME";
    });
  }
  rows_.push_back(std::move(row));
}

void OptionTable::add(const std::string& flag, Field field, std::string help,
                      const OptionRules& rules) {
  invariant(flag.starts_with("--"), "a flag starts with --");
  insert({.flag = flag,
          .key = key_of(flag),
          .help = std::move(help),
          .metavar = rules.metavar,
          .field = field,
          .rules = rules});
}

void OptionTable::positional(const std::string& name, Field field, std::string help, bool optional,
                             OptionRules rules) {
  std::string key = name;
  std::ranges::transform(key, key.begin(), [](char c) { return static_cast<char>(tolower(c)); });
  rules.required = !optional;
  insert({.key = key, .help = std::move(help), .metavar = name, .field = field, .rules = rules});
}

std::string OptionTable::nearest(std::string_view name, bool flags) const {
  std::vector<std::string> known;
  for (const Row& row : rows_) {
    if (!flags) known.push_back(row.key);
    if (!flags || row.positional()) continue;
    known.push_back(row.flag);
    if (is_flag(row.field)) known.push_back("--no-" + row.flag.substr(2));
  }
  if (flags) known.insert(known.end(), {"--help", "--config", "--print-config"});
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  std::string best;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best.empty() ? fmt::format("see {} --help", command_)
                      : fmt::format("did you mean {}? All are in {} --help", best, command_);
}

void OptionTable::read_file(const std::string& path) {
  const Json json = parse_json_file(path, {.comments = true});
  const JsonView view(json, path);  // refuses what is no object
  for (const auto& [key, value] : json.items()) {
    const auto row = std::ranges::find(rows_, key, &Row::key);
    if (row == rows_.end()) {
      throw Error({.what = "unknown key in the configuration",
                   .where = path,
                   .value = key,
                   .fix = nearest(key, false)});
    }
    const bool unsets = value.is_null() && row->initial == "null";
    if (value.is_null() && !unsets) continue;  // null = leave the default
    assign(row->field, row->rules, value, fmt::format("{}, $.{}", path, key));
    row->origin = "file " + path;
  }
}

void OptionTable::read_flags(std::span<const std::string> args) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", help_);
  app.add_flag("--print-config", print_config_);
  app.add_option("--config", config_path_);
  std::vector<CLI::Option*> options;
  for (const Row& row : rows_) {
    if (is_flag(row.field) && !row.positional()) {
      options.push_back(app.add_flag(fmt::format("{0},!--no-{1}", row.flag, row.flag.substr(2))));
      options.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      continue;
    }
    options.push_back(app.add_option(row.positional() ? row.key : row.flag));
    options.back()->type_name(row.metavar);
    options.back()->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 wants them reversed
  } catch (const CLI::ParseError& error) {
    throw Error({.what = "the command line cannot be read",
                 .value = error.what(),
                 .fix = fmt::format("see {} --help", command_)});
  }
  if (help_) return;
  // An unknown flag first: the words after it may be its value.
  std::vector<std::string> rest = app.remaining();
  std::stable_partition(rest.begin(), rest.end(),
                        [](const std::string& word) { return word.starts_with("-"); });
  if (!rest.empty()) {
    const std::string name = rest.front().substr(0, rest.front().find('='));
    const bool flag = name.starts_with("-");
    throw Error({.what = flag ? "unknown flag" : "an argument too many",
                 .value = name,
                 .fix = flag ? nearest(name, true) : fmt::format("see {} --help", command_)});
  }
  if (!config_path_.empty()) read_file(config_path_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    const auto& words = options[i]->results();
    if (words.empty()) continue;
    const bool list = visit_type(row.field, []<class T>(T*) { return is_list<T>; });
    if (!list && words.size() > 1) {
      throw Error({.what = "a flag is given more than once",
                   .where = row.flag,
                   .value = fmt::format("{}", fmt::join(words, ", ")),
                   .accepted = "one value",
                   .fix = "leave all but one out"});
    }
    const Json value = list ? Json(words) : from_word(row.field, words.back());
    assign(row.field, row.rules, value, row.positional() ? row.metavar : row.flag);
    row.origin = "flag";
  }
}

void OptionTable::check_required() const {
  for (const Row& row : rows_) {
    if (!row.rules.required || row.origin != "default") continue;
    throw Error({.what = fmt::format("{} is missing", row.positional() ? row.metavar : row.flag),
                 .accepted = row.help,
                 .fix = fmt::format("see {} --help", command_)});
  }
}

OptionTable::Outcome OptionTable::parse(std::span<const std::string> args) {
  read_flags(args);
  if (help_) {
    output_ = help();
    return Outcome::done;
  }
  if (print_config_) {
    output_ = config();
    return Outcome::done;
  }
  check_required();
  check_written();
  return Outcome::run;
}

// Before the work, lest long work end without its result.
void OptionTable::check_written() const {
  const Row* on_stdout = nullptr;
  for (const Row& row : rows_) {
    if (!row.rules.written) continue;
    const std::string& target = **std::get_if<std::string*>(&row.field);
    if (target == "-") {
      if (on_stdout) {
        throw Error({.what = "two results cannot both go to stdout",
                     .where = row.flag,
                     .value = fmt::format("- beside {} -", on_stdout->flag),
                     .accepted = "one of them",
                     .fix = "name a file for the other"});
      }
      on_stdout = &row;
    }
    if (!target.empty() && target != "-") check_file_target(target, Overwrite::replace);
  }
}

const std::string& OptionTable::origin(std::string_view flag) const {
  const auto row = std::ranges::find(rows_, key_of(flag), &Row::key);
  invariant(row != rows_.end(), "origin of an option that is not declared");
  return row->origin;
}

std::string OptionTable::help() const {
  constexpr size_t indent = 34, width = 100;
  const auto line = [&](const std::string& left, const std::string& right) {
    const std::string gap = left.size() + 2 < indent ? std::string(indent - left.size() - 2, ' ')
                                                     : '\n' + std::string(indent, ' ');
    return fmt::format("  {}{}{}\n", left, gap, wrap(right, indent, width));
  };
  std::string usage = command_, arguments, flags, group;
  for (const Row& row : rows_) {
    const std::string right = row.help + facts(row.initial, row.field, row.rules);
    if (row.positional()) {
      usage += row.rules.required ? " " + row.metavar : fmt::format(" [{}]", row.metavar);
      arguments += line(row.metavar, row.help);
      continue;
    }
    if (row.group != group) flags += fmt::format("\n{}:\n", group = row.group);
    std::string left = row.flag + (row.metavar.empty() ? "" : " " + row.metavar);
    if (row.initial == "true") left = "--[no-]" + row.flag.substr(2);
    flags += line(left, right);
  }
  flags += "\nGeneral:\n";
  flags += line("--config FILE", "read options from a JSON file; flags go above it");
  flags += line("--print-config", "print every option's value and where it came from, and exit");
  flags += line("-h, --help", "print this text, and exit");
  return fmt::format("{}\n\nUsage: {} [options]\n{}{}{}", summary_, usage,
                     arguments.empty() ? "" : "\n", arguments, flags);
}

std::string OptionTable::config() const {
  std::vector<std::string> lines;
  size_t widest = 0;
  for (const Row& row : rows_) {
    const bool last = &row == &rows_.back();
    lines.push_back(
        fmt::format("  \"{}\": {}{}", row.key, dump_json(value_of(row.field)), last ? "" : ","));
    if (lines.back().size() <= 60) widest = std::max(widest, lines.back().size());
  }
  std::string text = "{\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    text += fmt::format("{:<{}}  // {}\n", lines[i], widest, rows_[i].origin);
  }
  return text + "}\n";
}

std::string OptionTable::markdown() const {
  std::string text = "| flag | what it does | accepted | default |\n|---|---|---|---|\n";
  for (const Row& row : rows_) {
    const std::string name = row.positional() ? row.metavar : row.flag;
    const std::string value = row.initial == "null" ? "" : shown(Json::parse(row.initial));
    text += fmt::format("| `{}` | {} | {} | {} |\n", name, row.help,
                        accepted_by(row.field, row.rules), value);
  }
  return text;
}

}  // namespace octet
