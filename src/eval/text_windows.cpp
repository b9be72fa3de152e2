#include "eval/text_windows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace octet::eval {

std::string_view name_of(Convention convention) {
  switch (convention) {
    case Convention::windows:
      return "windows";
    case Convention::single:
      return "single";
    case Convention::chunks:
      return "chunks";
    case Convention::halves:
      return "halves";
  }
  throw Fault("not a Convention");
}

Convention parse_convention(std::string_view text) {
  for (const auto convention :
       {Convention::windows, Convention::single, Convention::chunks, Convention::halves}) {
    if (text == name_of(convention)) return convention;
  }
  throw Error({.what = "unknown way to cut a text",
               .where = "--convention",
               .value = std::string(text),
               .accepted = "windows, single, chunks, halves"});
}

int64_t default_window(Convention convention) {
  switch (convention) {
    case Convention::windows:
      return 512;
    case Convention::single:
      return 0;
    case Convention::chunks:
      return 2048;
    case Convention::halves:
      return 512;
  }
  throw Fault("not a Convention");
}

namespace {

// The text is one row of tokens, BOS first; what does not fill a window is left out.
std::vector<Piece> cut_halves(std::span<const int32_t> text, std::optional<int32_t> bos,
                              size_t window) {
  std::vector<int32_t> row;
  if (bos) row.push_back(*bos);
  row.insert(row.end(), text.begin(), text.end());
  std::vector<Piece> pieces;
  for (size_t first = 0; first + window <= row.size(); first += window) {
    const auto part = std::span(row).subspan(first, window);
    Piece piece{.tokens = {part.begin(), part.end()},
                .context = static_cast<int64_t>(window) / 2 + 1};
    if (bos) piece.tokens.front() = *bos;
    if (piece.scored() > 0) pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<Piece> cut_windows(std::span<const int32_t> text, std::optional<int32_t> bos,
                               size_t step) {
  std::vector<Piece> pieces;
  for (size_t first = 0; first < text.size(); first += step) {
    Piece piece;
    if (bos) piece.tokens.push_back(*bos);
    const auto part = text.subspan(first, std::min(step, text.size() - first));
    piece.tokens.insert(piece.tokens.end(), part.begin(), part.end());
    if (piece.scored() > 0) pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

std::vector<Piece> cut(std::span<const int32_t> text, std::optional<int32_t> bos,
                       Convention convention, int64_t window, int64_t max_model_len) {
  const size_t lead = bos ? 1 : 0;
  const size_t step = convention == Convention::single ? std::max<size_t>(text.size(), 1)
                                                       : static_cast<size_t>(window) - lead;
  const std::vector<Piece> pieces = convention == Convention::halves
                                        ? cut_halves(text, bos, static_cast<size_t>(window))
                                        : cut_windows(text, bos, step);
  if (pieces.empty()) {
    throw Error({.what = "the text has no token to score",
                 .where = "--text",
                 .value = fmt::format("{} tokens", text.size()),
                 .accepted = convention == Convention::halves
                                 ? fmt::format("a text of at least {} tokens", window)
                                 : "a text of at least two tokens"});
  }
  if (longest(pieces) > max_model_len) {
    throw Error({.what = "the model was not made for such long windows",
                 .where = convention == Convention::single ? "--text" : "--window",
                 .value = fmt::format("{} tokens", longest(pieces)),
                 .accepted = fmt::format("at most {}", max_model_len),
                 .fix = "take a smaller --window, or a part of the text with --max-tokens"});
  }
  return pieces;
}

std::string describe(Convention convention, int64_t window, bool has_bos) {
  if (convention == Convention::halves) {
    return fmt::format(
        "non-overlapping windows of {} tokens{}, the last {} of each scored (llama.cpp)", window,
        has_bos ? ", the first replaced by bos" : "", window - window / 2 - 1);
  }
  if (convention == Convention::single) {
    return has_bos ? "one pass, preceded by bos, all text tokens scored"
                   : "one pass, all text tokens but the first scored";
  }
  return has_bos ? fmt::format(
                       "non-overlapping windows of {} tokens, each preceded by bos, all "
                       "text tokens scored",
                       window - 1)
                 : fmt::format(
                       "non-overlapping windows of {} tokens, all tokens but the first of "
                       "each scored",
                       window);
}

int64_t total_tokens(std::span<const Piece> pieces) {
  int64_t count = 0;
  for (const Piece& piece : pieces) count += static_cast<int64_t>(piece.tokens.size());
  return count;
}

int64_t scored_tokens(std::span<const Piece> pieces) {
  int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.scored();
  return count;
}

int64_t longest(std::span<const Piece> pieces) {
  size_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.tokens.size());
  return static_cast<int64_t>(most);
}

}  // namespace octet::eval
