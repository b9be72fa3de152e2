#include "model/name_pattern.h"

#include <fmt/format.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>

#include "base/error.h"

namespace octet::model {
namespace {

// A config file must not stall the loader: patterns of real checkpoints need a few hundred steps.
constexpr uint32_t kMatchLimit = 1'000'000;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

std::string message_of(int error) {
  std::array<char, 256> text{};
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  return text.data();
}

struct Compiled {
  Code code;
  std::string fault;  // if there is no code
};

Compiled compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (code) return {std::move(code), ""};
  return {nullptr, fmt::format("{} at character {}", message_of(error), offset)};
}

bool is_literal(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace

std::optional<std::string> regex_fault(const std::string& pattern) {
  Compiled compiled = compile(pattern);
  if (compiled.code) return std::nullopt;
  return compiled.fault;
}

bool regex_matches_start(const std::string& pattern, std::string_view text) {
  const auto fail = [&](std::string what) {
    throw Error({.what = "a regular expression for names of modules does not work",
                 .where = fmt::format("quantization_config, 're:{}'", pattern),
                 .value = std::move(what),
                 .accepted = "a regular expression that PCRE2 reads and that needs few steps"});
  };
  const Compiled compiled = compile(pattern);
  if (!compiled.code) fail(compiled.fault);
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeData> data(
      pcre2_match_data_create_from_pattern(compiled.code.get(), nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int result = pcre2_match(compiled.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), 0, 0, data.get(), context.get());
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) fail(message_of(result));
  return result >= 0;
}

bool fnmatches(const std::string& pattern, std::string_view text) {
  std::string regex;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    // A bracket without an end, or with nothing in it, is a character like others.
    const size_t end = c == '[' ? pattern.find(']', i + 2) : pattern.npos;
    if (c == '*') {
      regex += ".*";
    } else if (c == '?') {
      regex += '.';
    } else if (end != pattern.npos) {
      const bool negated = pattern[i + 1] == '!';
      regex += negated ? "[^" : "[";
      for (const char in : pattern.substr(i + 1 + negated, end - i - 1 - negated)) {
        if (in == '\\' || in == '[' || in == '^') regex += '\\';
        regex += in;
      }
      regex += ']';
      i = end;
    } else {
      if (!is_literal(c)) regex += '\\';
      regex += c;
    }
  }
  return regex_matches_start(regex + "\\z", text);
}

bool contains_components(std::string_view name, std::string_view part) {
  if (part.empty()) return false;
  for (size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

std::optional<std::string> regex_glob(std::string_view pattern) {
  std::string glob;
  bool open_end = true;  // without '$' anything may follow
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '^' && i == 0) continue;
    if (c == '$' && i + 1 == pattern.size()) {
      open_end = false;
    } else if (is_literal(c)) {
      glob += c;
    } else if (c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.') {
      glob += '.';
      ++i;
    } else if (c == '.' && i + 1 < pattern.size() && pattern[i + 1] == '*') {
      glob += '*';
      ++i;
    } else if (c == '.') {
      glob += '?';
    } else {
      return std::nullopt;  // quantifiers, classes, alternatives
    }
  }
  if (open_end && !glob.ends_with('*')) glob += '*';
  return glob;
}

}  // namespace octet::model
