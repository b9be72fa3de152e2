// What a tokenizer is, in plain values: what text/tokenizer_json.h reads and the Tokenizer is built
// from.
//
// How a text becomes ids:
//
//   raw added tokens | normalizer | normalized added tokens | before_split | splits | merges
//
// and each stage sees only the stretches that the ones before it left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/rewrite.h"

namespace octet::text {

// What decoding leaves out at the begin of a text.
enum class LeadingSpace {
  keep,
  drop_one,          // one space (Llama-2)
  drop_first_token,  // the spaces of the first token (the Metaspace decoder)
};

// A byte-level tokenizer (GPT-2, Llama-3, Qwen, DeepSeek) has `bpe.bytes` with a symbol for each
// byte, token_bytes as plain bytes (bytes_of_alphabet("Ġthe") is " the"), and `splits`; nothing of
// what is marked SentencePiece.
//
// A SentencePiece-style one (Llama-2, Mistral) has `bpe.characters`, `pieces` as the file writes
// them ("▁the"), token_bytes from piece_bytes(), `bpe.bytes` with the ids of "<0x00>".."<0xFF>",
// and a normalizer that writes " " as "▁" and puts one in front.
struct TokenizerSpec {
  // By id: the bytes that decoding gives; empty where an id is not used.
  std::vector<std::string> token_bytes;
  // SentencePiece. By id: what the token is in normalized text. Empty: the same as token_bytes.
  std::vector<std::string> pieces;
  // By id: text may become this token by merging. False for control tokens.
  std::vector<bool> in_model;
  BpeModel bpe;

  std::vector<Rewrite> normalizer;
  std::vector<Rewrite> before_split;  // Metaspace as pre-tokenizer
  std::vector<SplitStage> splits;     // in order
  bool add_prefix_space = false;      // ByteLevel: each piece begins with a space
  std::optional<Regex> byte_level;    // ByteLevel with use_regex: one more split behind that space

  // Strings that become one token whatever the merges say; contents are distinct. Their ids are of
  // token_bytes, too. `special` ones are left out of decoded text on request.
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;  // ids that encode puts around a text (add_bos_token)
  std::optional<int32_t> bos, eos;      // what the model calls so, whether put around or not

  LeadingSpace leading_space = LeadingSpace::keep;  // SentencePiece
  // SentencePiece: an invalid sequence of n bytes decodes to n U+FFFD, as ByteFallback does, not to
  // one.
  bool replace_each_byte = false;
  // Offsets leave out white space at the ends of a token, but for a space of add_prefix_space.
  bool trim_offsets = false, trim_keeps_prefix = false;
};

// " " for "▁"; the rest as it is.
std::string piece_bytes(std::string_view piece);

// The value of "<0x0A>", or nothing for any other string.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

}  // namespace octet::text
