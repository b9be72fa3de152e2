#include "text/grammar_faults.h"

#include <fmt/format.h>

#include "base/error.h"

namespace octet::text {
namespace {

// `words` holds where `said` has `mark`; "{}" in them is the first name in double quotes of `said`.
// The first row that fits is taken.
struct Row {
  std::string_view mark, words;
};

constexpr Row kRows[] = {
    {"no text has this form", "no text has this form"},
    // expressions
    {"ackreference", "a reference to a group, \\1 or \\k"},
    {"ookahead", "look-around, (?=..) or (?!..)"},
    {"ookbehind", "look-around, (?<=..) or (?<!..)"},
    {"Word boundary", "a word boundary, \\b or \\B"},
    {"property escape", "a class by property, \\p or \\P"},
    {"Unicode character class", "a class by property, \\p or \\P"},
    {"named capturing group", "a group whose name cannot be read"},
    {"roup modifier", "a group of an unknown kind, (?..)"},
    {"'^'", "^ where the text cannot begin"},
    {"'$'", "$ where the text cannot end"},
    {"Anchor '", "^ or $ where the text can neither begin nor end"},
    {"arenthesis is not closed", "a ( that is not closed"},
    {"Unmatched ')'", "a ) without its ("},
    {"Unmatched ']'", "a ] without its ["},
    {"Unclosed '['", "a [ that is not closed"},
    {"Unterminated character class", "a [ that is not closed"},
    {"class should not contain newline", "a line feed between [ and ]"},
    {"Empty character class", "an empty class, []"},
    {"character range", "a range of characters that cannot be read, or ends before it begins"},
    {"character class: lower bound", "a range of characters that ends before it begins"},
    {"othing to repeat", "a repeat of nothing"},
    {"consecutive repetition", "a repeat of a repeat, as in a**"},
    {"epetition", "a count that cannot be read, or ends before it begins, as in {3,1}"},
    {"trailing backslash", "a \\ at the end"},
    {"sequence is not finished", "a \\ at the end"},
    {"scape", "an escape that is not known, or not whole"},
    {"must be followed by", "an escape that is not known, or not whole"},
    {"UTF", "bytes that are not UTF-8"},
    {"null character", "a NUL character"},
    // grammars
    {"is not defined", "the rule \"{}\" is used, and not defined"},
    {"defined multiple times", "the rule \"{}\" is defined twice"},
    {"root rule", "there is no rule called root"},
    {"ule name", "a rule must begin with its name: NAME ::= .."},
    {"Assign should", "::= without the name of a rule before it"},
    {"Expect element",
     "something of which the rule is made is missing: a \"text\", a [class], a name"},
    {"string literal", "a text in double quotes is expected"},
    {"Expect", "something is missing here"},
    {"Unexpected character", "a character that means nothing here"},
    {"Nest layer", "too deep a nesting"},
    {"elf-recursion", "a rule that leads to itself without taking a character"},
    // schemas
    {"Unsupported type", "the type \"{}\" is none of JSON's"},
    {"Type should", "type must be a name, or a list of names"},
    {"Schema should be", "a schema must be an object, true or false"},
    {"cannot accept any value", "a schema that no value satisfies"},
    {"multipleOf", "multipleOf other than a whole number, or beside a bound"},
    {"minLength", "minLength or maxLength beside pattern or format, or above one another"},
    {"whole number", "a bound of integers that is no whole number"},
    {"Integer exceeds", "a whole number beyond 64 bits"},
    {"nteger is too large", "a whole number that is too large"},
    {"minimum greater than maximum", "a least value above the largest"},
    {"empty range", "a least value above the largest"},
    {"is greater than", "a least value above the largest"},
    {"arger than upper", "a least value above the largest"},
    {"larger than the upper", "a least value above the largest"},
    {"must be a number", "a bound that is no number"},
    {"must be an array", "a list is expected where there is something else"},
    {"allOf", "allOf of several schemas"},
    {"eyword", "a keyword that the documentation does not list"},
    {"$ref", "a $ref that cannot be followed"},
    {"URI should", "a $ref that cannot be followed"},
    {"Failed to build the automaton", "too large, or too many ways to read one text"},
    {"Cannot build the FSM", "too large, or too many ways to read one text"},
};

// The digits behind `mark`, or "".
std::string_view number_behind(std::string_view said, std::string_view mark) {
  const size_t at = said.find(mark);
  if (at == said.npos) return {};
  const std::string_view rest = said.substr(at + mark.size());
  return rest.substr(0, rest.find_first_not_of("0123456789"));
}

// "position 4: ", "line 2, column 1: ", or "".
std::string place_in(std::string_view said) {
  const std::string_view position = number_behind(said, "at position ");
  if (!position.empty()) return fmt::format("position {}: ", position);
  const std::string_view line = number_behind(said, "at line "),
                         column = number_behind(said, ", column ");
  if (line.empty() || column.empty()) return "";
  return fmt::format("line {}, column {}: ", line, column);
}

std::string first_quoted(std::string_view said) {
  const size_t begin = said.find('"');
  if (begin == said.npos) return "";
  const std::string_view rest = said.substr(begin + 1);
  return shortened(std::string(rest.substr(0, rest.find('"'))), 80);
}

}  // namespace

std::string fault_in_own_words(std::string_view said) {
  std::string words = "it cannot be read";
  for (const Row& row : kRows) {
    if (said.find(row.mark) == said.npos) continue;
    words = row.words;
    const size_t at = words.find("{}");
    if (at != words.npos) words.replace(at, 2, first_quoted(said));
    break;
  }
  return place_in(said) + words;
}

}  // namespace octet::text
