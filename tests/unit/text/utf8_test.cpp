#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "text/byte_alphabet.h"

namespace octet::text {
namespace {

constexpr const char* kR = "\xEF\xBF\xBD";

std::string times(int n) {
  std::string out;
  while (n-- > 0) out += kR;
  return out;
}

TEST(Utf8, EveryScalarValueIsValidAndRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8Step::valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.bytes, text.size());
    ASSERT_TRUE(utf8_code_point(text) == c);
    // Every proper prefix could still become valid.
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Step cut = utf8_step(std::string_view(text).substr(0, n));
      ASSERT_EQ(cut.kind, Utf8Step::incomplete) << static_cast<uint32_t>(c);
      ASSERT_EQ(cut.bytes, n);
    }
  }
}

TEST(Utf8, InvalidInputGivesOneReplacementForEachMaximalSubpart) {
  // The examples of the Unicode standard, tables 3-8 to 3-11.
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), times(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), times(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            times(5) + "A" + times(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), times(4) + "A");
  EXPECT_EQ(replace_invalid_utf8("abcdefgh\xE4\xB8"), "abcdefgh" + times(1));
  EXPECT_EQ(replace_invalid_utf8(""), "");
  EXPECT_FALSE(is_valid_utf8("abcdefghij\xE4\xB8"));
  EXPECT_TRUE(is_valid_utf8("abcdefgh\xE4\xB8\xADx"));
}

TEST(Utf8, DecidedStopsBeforeAnIncompleteEnd) {
  std::string out;
  EXPECT_EQ(append_decided_utf8("a\xF0\x9F\x98", out), 1u);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(append_decided_utf8("\xF0\x9F\x98\x41", out), 4u);
  EXPECT_EQ(out, "a" + times(1) + "A");
}

TEST(ByteAlphabet, IsTheOneOfGpt2) {
  EXPECT_EQ(static_cast<uint32_t>(kByteAlphabet[' ']), 0x120u);
  EXPECT_EQ(static_cast<uint32_t>(kByteAlphabet['\n']), 0x10Au);
  EXPECT_TRUE(kByteAlphabet['a'] == U'a');
  EXPECT_EQ(static_cast<uint32_t>(kByteAlphabet[0xAD]), 0x143u);
  EXPECT_EQ(static_cast<uint32_t>(kByteAlphabet[0xFF]), 0xFFu);
  for (int b = 0; b < 256; ++b) {
    std::string written;
    append_utf8(kByteAlphabet[b], written);
    EXPECT_EQ(bytes_of_alphabet(written), std::string(1, static_cast<char>(b)));
  }
  EXPECT_EQ(bytes_of_alphabet("\xC4\xA0the"), " the");
  EXPECT_EQ(bytes_of_alphabet("a b"), std::nullopt);           // a space is no letter of it
  EXPECT_EQ(bytes_of_alphabet("\xEF\xBD\x9C"), std::nullopt);  // U+FF5C
  EXPECT_EQ(bytes_of_alphabet("\xC4"), std::nullopt);
}

}  // namespace
}  // namespace octet::text
