#include "text/grammar_faults.h"

#include <gtest/gtest.h>

namespace octet::text {
namespace {

TEST(GrammarFaults, SayWhatAndWhereInWordsOfOurs) {
  const std::pair<const char*, const char*> cases[] = {
      {"Regex parsing error at position 4: There is nothing to repeat before '*'",
       "position 4: a repeat of nothing"},
      {"Regex parsing warning at position 12: Lookahead assertion is not supported",
       "position 12: look-around, (?=..) or (?!..)"},
      {"[10:11:12] /a/b.cc:84: EBNF parser error at line 2, column 15: Rule \"thing\" is not "
       "defined",
       "line 2, column 15: the rule \"thing\" is used, and not defined"},
      {"Unsupported type \"quaternion\"", "the type \"quaternion\" is none of JSON's"},
      {"no text has this form", "no text has this form"},
      {"something\nthat nobody\nhas seen", "it cannot be read"},
      {"at position x, at line 7", "it cannot be read"},
      {"", "it cannot be read"}};
  for (const auto& [said, words] : cases) EXPECT_EQ(fault_in_own_words(said), words);
}

TEST(GrammarFaults, AreShortWhateverIsQuoted) {
  const std::string name(5000, 'x');
  const std::string fault = fault_in_own_words("Rule \"" + name + "\" is not defined");
  EXPECT_LT(fault.size(), 150u);
}

}  // namespace
}  // namespace octet::text
