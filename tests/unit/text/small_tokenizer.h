// A small byte-level BPE tokenizer for tests: all 256 bytes, a few merges, and what a test changes.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace octet::text {

// tokenizer.json: id b is the byte b; 256.. are the merges "he" "ll" "hell" "hello" "Ġhello"; 261
// and 262 the special tokens <bos> and <eos>.
inline Json small_tokenizer_json() {
  Json vocab = Json::object();
  const auto letter = [](int b) {
    std::string text;
    append_utf8(kByteAlphabet[b], text);
    return text;
  };
  for (int b = 0; b < 256; ++b) vocab[letter(b)] = b;
  const std::string space = letter(' ');
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {space, "hello"}};
  Json list = Json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back(left + " " + right);
  }
  const auto special = [](const char* content, int id) {
    return Json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {
      {"added_tokens", {special("<bos>", 261), special("<eos>", 262)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline Json small_config_json() {
  return {{"bos_token", "<bos>"}, {"eos_token", {{"content", "<eos>"}}}, {"add_bos_token", true}};
}

inline Tokenizer small_tokenizer(const Json& tokenizer = small_tokenizer_json(),
                                 const Json& config = small_config_json()) {
  return Tokenizer::from_json(dump_json(tokenizer), config.is_null() ? "" : dump_json(config),
                              "model");
}

}  // namespace octet::text
