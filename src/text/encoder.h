// What a Tokenizer is made of: the stages of text/tokenizer_spec.h, ready to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/rewrite.h"
#include "text/token_table.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"

namespace octet::text {

// Immutable but for the cache of its merges: any number of threads may encode at once.
struct Encoder {
  explicit Encoder(TokenizerSpec spec);
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Appends the ids of `text` (valid UTF-8), without prefix and suffix. Stops, and returns false,
  // once there are more than `most` in all.
  bool encode(std::string_view text, const EncodeOptions& options, size_t most,
              std::vector<int32_t>& ids) const;

  // The same, step by step with the source of every byte.
  void encode_with_offsets(std::string_view text, const EncodeOptions& options,
                           std::vector<TokenSpan>& spans) const;

  // Whether the prefix ends, at `begin`, with the BOS with which the text begins again.
  bool doubles_bos(size_t begin, const std::vector<int32_t>& ids) const {
    return begin > 0 && begin < ids.size() && ids[begin - 1] == bos && ids[begin] == bos;
  }

  size_t bytes_per_id;     // the most bytes of text that one id can stand for
  TokenBytes tokens;       // what each decodes to
  TokenBytes pieces;       // what each is in normalized text; empty where that is the same
  StringIdMap vocabulary;  // of the model's tokens, views into these
  std::vector<Rewrite> normalizer, before_split;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher added;       // those of the second pass are normalized
  AddedTokenMatcher as_written;  // none is
  std::vector<bool> special;     // by id
  std::unordered_map<std::string, int32_t> added_ids;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
  LeadingSpace leading_space;
  bool replace_each_byte, trim_offsets, trim_keeps_prefix;

 private:
  struct Work;
  bool encode_stretch(std::string_view text, bool first, const EncodeOptions& options, size_t most,
                      Work& work, std::vector<int32_t>& ids) const;
  bool encode_plain(std::string_view text, bool first, size_t most, Work& work,
                    std::vector<int32_t>& ids) const;
  void encode_plain_with_offsets(Rewritten text, bool first, size_t base, Work& work,
                                 std::vector<TokenSpan>& spans) const;
  void trim(std::string_view text, TokenSpan& span, bool first) const;

  bool characters_, words_are_apart_ = false;
};

}  // namespace octet::text
