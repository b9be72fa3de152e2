// How a text is cut into the pieces that a model is scored on (models-numerics G). A perplexity
// means nothing without its convention, so every figure carries the name of one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::eval {

enum class Convention : uint8_t {
  windows,  // windows that do not overlap, each of BOS and window - 1 tokens of the text
  single,   // one pass over BOS and the whole text
  chunks,   // windows by another name, long by default: for texts of many thousand tokens
  // llama.cpp's perplexity tool: whole windows of the text, whose first token gives way to BOS
  // where the tokenizer adds one; only the second half of each is scored.
  halves,
};
std::string_view name_of(Convention convention);
Convention parse_convention(std::string_view text);  // throws Error
int64_t default_window(Convention convention);       // 512, 0, 2048, 512

// Consecutive tokens that one forward pass computes. All but the first `context` are scored.
struct Piece {
  std::vector<int32_t> tokens;
  int64_t context = 1;
  int64_t scored() const { return static_cast<int64_t>(tokens.size()) - context; }
};

// Cuts `text` (without BOS). A model without BOS sees plain windows, whose first tokens are then
// not scored. Pieces with nothing to score are dropped. Throws Error if a piece is longer than
// `max_model_len`, or nothing is left to score.
std::vector<Piece> cut(std::span<const int32_t> text, std::optional<int32_t> bos,
                       Convention convention, int64_t window, int64_t max_model_len);

// What the convention was, in words: "non-overlapping windows of 511 tokens, each preceded by bos,
// all text tokens scored".
std::string describe(Convention convention, int64_t window, bool has_bos);

int64_t total_tokens(std::span<const Piece> pieces);
int64_t scored_tokens(std::span<const Piece> pieces);
int64_t longest(std::span<const Piece> pieces);

}  // namespace octet::eval
