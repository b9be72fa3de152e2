#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "text/unicode_additions.h"

namespace octet::text {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 16 * 1024 * 1024;

// PCRE2 gives up after 10 million steps, which longer texts need for themselves.
constexpr uint64_t kSteps = 10'000'000;
constexpr uint64_t kStepsPerByte = 16;
constexpr size_t kFewBytes = 256 * 1024;

// Appends the ranges of characters that PCRE2 may not know yet and whose general category begins
// with `category`, as items of a class.
void append_additions(std::string_view category, std::string& out) {
  for (const UnicodeAddition& range : kUnicodeAdditions) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    char item[32];
    std::snprintf(item, sizeof item, range.first == range.last ? "\\x{%X}" : "\\x{%X}-\\x{%X}",
                  static_cast<unsigned>(range.first), static_cast<unsigned>(range.last));
    out += item;
  }
}

// Whether a property is a general category: "L", "Lu".
bool is_general_category(std::string_view property) {
  return !property.empty() && property.size() <= 2 &&
         std::string_view("LMNPSZC").find(property[0]) != std::string_view::npos &&
         (property.size() == 1 || (property[1] >= 'a' && property[1] <= 'z'));
}

// Oniguruma's word characters as items of a class: UTS 18 annex C, and six characters of Latin-1
// (superscripts and fractions) that only it counts.
std::string word_items() {
  std::string items = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE";
  for (const char* category : {"L", "M", "Nd", "Nl", "Pc"}) append_additions(category, items);
  return items;
}

struct CodeFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct CompileContextFree {
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

std::string pcre2_message(int code) {
  unsigned char buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown";
  return reinterpret_cast<const char*>(buffer);
}

[[noreturn]] void refuse(std::string_view what, std::string_view pattern, std::string_view where,
                         std::string accepted) {
  throw Error({.what = std::string(what),
               .where = std::string(where),
               .value = std::string(pattern.substr(0, 200)),
               .accepted = std::move(accepted),
               .fix = "rewrite the expression in tokenizer.json"});
}

PCRE2_SPTR bytes_of(std::string_view text) {
  // PCRE2 wants a pointer even for an empty subject.
  return reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
}

}  // namespace

struct RegexScratch::State {
  // One pair: only the whole match is read, however many groups the pattern has.
  std::unique_ptr<pcre2_match_data, MatchDataFree> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;  // made where limits must grow
  // Made only when a search outgrows the 32 KiB of machine stack that the JIT starts with.
  std::unique_ptr<pcre2_jit_stack, JitStackFree> stack;

  void grow_stack() {
    if (stack) return;
    need_context();
    stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // Going back over a long run is one step a character, which is no reason to give up.
  void allow_steps_for(size_t subject_bytes) {
    if (subject_bytes <= kFewBytes) return;
    need_context();
    const uint64_t steps = kSteps + kStepsPerByte * subject_bytes;
    pcre2_set_match_limit(context.get(),
                          static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  }

 private:
  void need_context() {
    if (!context) context.reset(pcre2_match_context_create(nullptr));
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  std::unique_ptr<pcre2_code, CodeFree> code;
  bool jit = false;
};

Regex::Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex Regex::compile(std::string_view pattern, std::string where) {
  const std::string translated = regex_to_pcre2(pattern, where);
  // Ruby's '^' and '$' always mean lines.
  return build(pattern, translated,
               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, std::move(where));
}

Regex Regex::literal(std::string_view text, std::string where) {
  Regex regex = build(text, std::string(text), PCRE2_UTF | PCRE2_LITERAL, std::move(where));
  regex.literal_ = true;
  return regex;
}

Regex Regex::build(std::string_view source, const std::string& translated, uint32_t options,
                   std::string where) {
  if (source.size() > kMaxPatternBytes) {
    refuse("regular expression is too long", source, where, "at most 65536 bytes");
  }
  std::unique_ptr<pcre2_compile_context, CompileContextFree> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what '.' and '$' stop at, as in Ruby

  int error = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.code_ = std::make_unique<Code>();
  regex.code_->code.reset(pcre2_compile(bytes_of(translated), translated.size(), options, &error,
                                        &offset, context.get()));
  if (!regex.code_->code) {
    refuse("invalid regular expression: " + pcre2_message(error) + " at byte " +
               std::to_string(offset) + " of " + translated.substr(0, 200),
           source, where, "Oniguruma or PCRE2 syntax");
  }
  // Machines that forbid executable memory have no JIT: the interpreter gives the same matches.
  regex.code_->jit = pcre2_jit_compile(regex.code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
  regex.pattern_ = source;
  regex.where_ = std::move(where);
  return regex;
}

std::optional<RegexMatch> Regex::search(std::string_view subject, size_t from,
                                        RegexScratch& scratch) const {
  RegexScratch::State& state = *scratch.state_;
  const pcre2_code* code = code_->code.get();
  const auto interpret = [&](uint32_t options) {
    return pcre2_match(code, bytes_of(subject), subject.size(), from, PCRE2_NO_UTF_CHECK | options,
                       state.match.get(), state.context.get());
  };
  const auto jit = [&] {
    return pcre2_jit_match(code, bytes_of(subject), subject.size(), from, 0, state.match.get(),
                           state.context.get());
  };

  state.allow_steps_for(subject.size());
  int result = code_->jit ? jit() : interpret(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    state.grow_stack();
    result = jit();
    // The interpreter keeps its stack on the heap and has the larger limit.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = interpret(PCRE2_NO_JIT);
  }
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw Error({.what = "text cannot be split: the tokenizer's regular expression gave up (" +
                         pcre2_message(result) + ")",
                 .where = where_,
                 .value = std::to_string(subject.size()) + " bytes of text",
                 .accepted = "text that " + pattern_.substr(0, 200) + " can search",
                 .fix = "send shorter text, or use an expression without nested repeats"});
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.match.get());
  // \K can move the begin; never hand out a range that is not one.
  if (ends[0] < from || ends[1] < ends[0] || ends[1] > subject.size()) {
    refuse("regular expression matches a range that runs backwards", pattern_, where_,
           "an expression without \\K");
  }
  return RegexMatch{ends[0], ends[1]};
}

std::string regex_to_pcre2(std::string_view pattern, std::string_view where) {
  std::string out;
  out.reserve(pattern.size() + 32);
  const std::string words = word_items();
  const std::string word = "[" + words + "]", not_word = "[^" + words + "]";
  bool in_class = false;
  size_t class_start = 0;  // index in `pattern` of the first item, where ']' is a literal

  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char e = pattern[++i];
      if (in_class && (e == 'W' || e == 'H')) {
        refuse("\\W and \\H inside a character class are not supported", pattern, where,
               "\\w, \\h, or the class written out");
      }
      switch (e) {
        case 's':
          out += "\\p{White_Space}";
          break;
        case 'S':
          out += "\\P{White_Space}";
          break;
        case 'w':
          out += in_class ? words : word;
          break;
        case 'W':
          out += not_word;
          break;
        case 'h':
          out += in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
          break;
        case 'H':
          out += "[^0-9A-Fa-f]";
          break;
        case 'b':
          // In a class it is a backspace in both dialects.
          out += in_class
                     ? "\\b"
                     : "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
          break;
        case 'B':
          out += in_class
                     ? "\\B"
                     : "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
          break;
        case 'd':
        case 'D': {
          if (in_class && e == 'D') {
            out += "\\D";
            break;
          }
          std::string digits = "\\p{Nd}";
          append_additions("Nd", digits);
          out += in_class ? digits : (e == 'd' ? "[" : "[^") + digits + "]";
          break;
        }
        case 'p':
        case 'P': {
          const size_t end = pattern.find('}', i);
          const bool braced =
              i + 1 < pattern.size() && pattern[i + 1] == '{' && end != std::string_view::npos;
          const std::string_view name = braced ? pattern.substr(i + 2, end - i - 2) : "";
          // \P in a class cannot be written as one flat class: PCRE2's own tables decide there.
          if (!is_general_category(name) || (in_class && e == 'P')) {
            out += {'\\', e};
            break;
          }
          if (!in_class) out += e == 'p' ? "[" : "[^";
          out.append("\\p{").append(name).append("}");
          append_additions(name, out);
          if (!in_class) out += ']';
          i = end;
          break;
        }
        default:
          out += {'\\', e};
          break;
      }
      continue;
    }
    if (!in_class) {
      if (pattern.substr(i, 2) == "(?") {
        // Inline flags: "(?m)" and "(?m:" let '.' match a newline in Ruby, which is PCRE2's 's'.
        const size_t end = pattern.find_first_not_of("imxs-", i + 2);
        if (end != std::string_view::npos && (pattern[end] == ':' || pattern[end] == ')')) {
          for (; i <= end; ++i) out += pattern[i] == 'm' ? 's' : pattern[i];
          --i;
          continue;
        }
      }
      if (c == '[') {
        in_class = true;
        class_start = i + 1;
        if (class_start < pattern.size() && pattern[class_start] == '^') ++class_start;
      }
      out += c;
      continue;
    }
    if (c == '[') {
      const size_t posix_end = i + 1 < pattern.size() && pattern[i + 1] == ':'
                                   ? pattern.find(":]", i)
                                   : std::string::npos;
      if (posix_end == std::string::npos) {
        refuse("a character class inside a character class is not supported", pattern, where,
               "one flat class, with a literal '[' written as \"\\[\"");
      }
      out += pattern.substr(i, posix_end + 2 - i);
      i = posix_end + 1;
      continue;
    }
    if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      refuse("\"&&\" (intersection) in a character class is not supported", pattern, where,
             "one flat class, with literal ampersands written as \"\\&\"");
    }
    if (c == ']' && i > class_start) in_class = false;
    out += c;
  }
  return out;
}

}  // namespace octet::text
