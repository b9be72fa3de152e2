// What a tokenizer's files say, checked and in plain values; the Tokenizer is built from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace octet::text {

struct TokenizerSpec {
  std::vector<std::string> token_bytes;  // by id; empty where an id is not used
  std::vector<bool> in_model;            // by id: its bytes are a token of the BPE's vocabulary
  BpeModel bpe;
  std::vector<SplitStage> splits;
  bool add_prefix_space = false;
  std::optional<Regex> byte_level;      // see PreTokenizer
  std::vector<AddedToken> added;        // contents are distinct
  std::vector<int32_t> prefix, suffix;  // ids around a text
  std::optional<int32_t> bos, eos;
};

// Reads the contents of tokenizer.json and tokenizer_config.json (empty: there is none). The names
// are how errors call the files. Throws Error with file, JSON path, value and what is accepted.
TokenizerSpec parse_tokenizer(std::string_view tokenizer, const std::string& tokenizer_name,
                              std::string_view config, const std::string& config_name);

}  // namespace octet::text
