// The tokenizer: text to ids and back, as Hugging Face's tokenizer.json describes it.
//
// What is read: byte-level BPE in the forms of GPT-2, Llama-3, DeepSeek, Qwen and SmolLM2, and
// SentencePiece-style BPE with byte fallback (Llama-2, Mistral, Mixtral). Anything else in the file
// (Unigram and WordPiece models, other normalizers) is an Error that names the place and what is
// accepted; nothing is skipped silently, except `truncation` and `padding`, which are the engine's
// to decide.
//
// Text that is not valid UTF-8 is no error: each maximal invalid subpart is taken for U+FFFD before
// anything else (see text/utf8.h). So decode(encode(x)) is x with invalid bytes replaced, provided
// that the vocabulary has all 256 bytes; bytes that it lacks vanish, as in the reference. (But NFC
// changes the text, and SentencePiece takes "▁" for a space.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text {

struct EncodeOptions {
  // Puts the model's BOS (and what else its template has) around the text. BOS is never doubled: if
  // the text itself begins with the BOS token, as a rendered chat template does, none is added.
  bool add_special_tokens = true;
  // Whether the strings of special tokens in the text become those tokens. False: they are split
  // like any text. Added tokens that are not special are found all the same.
  bool parse_special = true;
  // False: no added token is found, special or not. For text that is not trusted: some models mark
  // control tokens as not special (DeepSeek-V3's <｜User｜>).
  bool parse_added = true;
  // Places in the text, ascending byte offsets, across which no added token is found: what would
  // cover one is split like any text. Chat marks so what a user wrote inside a rendered template.
  std::span<const size_t> walls = {};
};

// A token and where it came from: bytes [begin, end) of the text.
struct TokenSpan {
  int32_t id;
  size_t begin, end;
  bool operator==(const TokenSpan&) const = default;
};

// Immutable: any number of threads may use one at once without locks.
class Tokenizer {
 public:
  // Reads tokenizer.json and, if it is there, tokenizer_config.json (add_bos_token, add_eos_token,
  // the names of BOS and EOS, added_tokens_decoder) of a model directory. Throws Error naming file
  // and JSON path.
  static Tokenizer load(const std::filesystem::path& directory);

  // The same from the texts of the two files; `config` may be empty. `name` is the directory in
  // errors.
  static Tokenizer from_json(std::string_view tokenizer, std::string_view config,
                             std::string_view name = "");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`, any bytes. Time is O(n log n), memory at most some 50 bytes for each byte of
  // the text, which a long run without a split (a megabyte of one letter) needs. Throws Error above
  // 1 GiB, or where an expression of the tokenizer's own file gives up on this text (never with
  // those of the models named above).
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The same if these are at most `most` ids, else nothing. It ends as soon as that is certain: at
  // once for a text that is too long whatever it says, and otherwise with the piece that passes the
  // limit. So work and memory are bounded by the limit, not by the text.
  std::optional<std::vector<int32_t>> encode_at_most(size_t most, std::string_view text,
                                                     const EncodeOptions& options = {}) const;

  // The ids of encode() and where each came from: whole characters, those that the reference gives.
  // What stands for nothing in the text (BOS) is (0, 0). Offsets are those of the text with invalid
  // UTF-8 replaced. Slower than encode().
  std::vector<TokenSpan> encode_with_offsets(std::string_view text,
                                             const EncodeOptions& options = {}) const;

  // The text of `ids`: their bytes in a row, with invalid UTF-8 replaced by U+FFFD. Ids that do not
  // exist give nothing. `skip_special` leaves special tokens out. A SentencePiece-style tokenizer
  // drops the space with which its texts begin.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes of one token, which need not be whole characters; empty where `id` does not exist.
  // Valid as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;

  // Whether n bytes that are no UTF-8 decode to n U+FFFD rather than to one.
  bool replaces_each_byte() const;

  // Whether `id` is an added token marked special, or the BOS, EOS, PAD or UNK of the config.
  bool is_special(int32_t id) const;

  // The largest id plus one. The model's embedding may have more rows.
  int32_t size() const;

  // From tokenizer_config.json; BOS otherwise from the template. Empty where the model has none.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  // Whether encode puts BOS first by default.
  bool adds_bos() const;

  // Every place where an added token stands in `text`, also one inside another, in order.
  std::vector<TokenSpan> added_token_places(std::string_view text) const;

  // The id of an added token such as "<|im_end|>", or else of the token with just these bytes.
  std::optional<int32_t> token_id(std::string_view content) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace octet::text
