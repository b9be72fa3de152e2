// Two paths, by the first byte. Odd: the rest is a tokenizer.json, which loads or is an Error; one
// that loads must encode. Even: the rest is text for fixed small tokenizers: one of bytes, where
// decode(encode) must be the text with invalid UTF-8 replaced, streamed or not, and one that
// normalizes and begins with characters, where both ways to encode must agree.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/utf8.h"
#include "unit/text/small_tokenizer.h"

namespace {

using octet::text::Tokenizer;

// Llama-3's pattern, added tokens that take white space, and every byte in the vocabulary.
Tokenizer fixed_tokenizer() {
  octet::Json json = octet::text::small_tokenizer_json();
  const char* pattern =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", pattern}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return octet::text::small_tokenizer(json);
}

// SentencePiece-style, with NFC, Metaspace and few letters: most characters are spelled or unknown.
Tokenizer character_tokenizer() {
  octet::Json json = octet::text::small_tokenizer_json();
  json["normalizer"] = {{"type", "NFC"}};
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"split", false}};
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  octet::Json& model = json["model"];
  model = {{"type", "BPE"}, {"unk_token", "?"}, {"fuse_unk", true}, {"byte_fallback", true}};
  model["vocab"] = {{"?", 0},      {"\u2581", 1}, {"a", 2},      {"\u2581a", 3},
                    {"<0x65>", 4}, {"<0xCC>", 5}, {"<0x81>", 6}, {"\u00E9", 7}};
  model["merges"] = {"\u2581 a"};
  return octet::text::small_tokenizer(json);
}

void check_offsets(const Tokenizer& tokenizer, std::string_view text) {
  const size_t size = octet::text::replace_invalid_utf8(text).size();
  std::vector<int32_t> ids;
  for (const auto& span : tokenizer.encode_with_offsets(text)) {
    if (span.begin > span.end || span.end > size) std::abort();
    ids.push_back(span.id);
  }
  if (ids != tokenizer.encode(text)) std::abort();
}

void fuzz_file(std::string_view json) {
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(json, "", "input");
    const std::string_view text = "I'm 12 <bos>\n h\xC3\xA9llo\xFF  ";
    const std::vector<int32_t> ids = tokenizer.encode(text);
    check_offsets(tokenizer, text);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.size()) std::abort();
    }
    (void)tokenizer.decode(ids, true);
  } catch (const octet::Error&) {
  }
}

void fuzz_text(std::string_view text) {
  static const Tokenizer tokenizer = fixed_tokenizer();
  const octet::text::EncodeOptions options{.add_special_tokens = false};
  const std::vector<int32_t> ids = tokenizer.encode(text, options);
  const std::string decoded = tokenizer.decode(ids, false);
  if (decoded != octet::text::replace_invalid_utf8(text)) std::abort();
  octet::text::Detokenizer detokenizer(tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.flush();
  if (streamed != decoded) std::abort();
  check_offsets(tokenizer, text);
  static const Tokenizer characters = character_tokenizer();
  check_offsets(characters, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    fuzz_file(rest);
  } else {
    fuzz_text(rest);
  }
  return 0;
}
