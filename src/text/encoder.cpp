#include "text/encoder.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// Whether the vocabulary has something for every byte or character.
bool spells_everything(const BpeModel& bpe) {
  return std::ranges::all_of(bpe.bytes, [](const ByteSymbols& byte) { return byte.count > 0; });
}

// Unlimited where text may vanish without an id.
size_t most_bytes_per_id(const TokenizerSpec& spec) {
  const BpeModel& bpe = spec.bpe;
  const bool vanishes = (bpe.unknown < 0 || bpe.fuse_unknown) && !spells_everything(bpe);
  const bool splits_drop = std::ranges::any_of(spec.splits, [](const SplitStage& split) {
    return split.behavior == SplitBehavior::removed;
  });
  const bool tokens_strip = std::ranges::any_of(
      spec.added, [](const AddedToken& token) { return token.lstrip || token.rstrip; });
  const size_t shrinkage = most_shrinkage(spec.normalizer) * most_shrinkage(spec.before_split);
  if (vanishes || splits_drop || tokens_strip || shrinkage == 0) return kUnlimited;
  size_t most = 4;  // an unknown character
  for (const std::string& bytes : spec.token_bytes) most = std::max(most, bytes.size());
  for (const std::string& piece : spec.pieces) most = std::max(most, piece.size());
  for (const AddedToken& token : spec.added) most = std::max(most, token.content.size());
  return most * shrinkage;
}

// Whether no token reaches over the begin of a word: over a "▁" behind another character. Then the
// words of a text can be merged each on its own. (Not where characters vanish, and two "▁" meet.)
bool words_are_apart(const TokenizerSpec& spec, const StringIdMap& vocabulary) {
  if (!spec.bpe.characters || spec.bpe.ignore_merges || vocabulary.find(kMetaspace) < 0) {
    return false;
  }
  if (spec.bpe.unknown < 0 && !spells_everything(spec.bpe)) return false;
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const std::string_view piece = spec.pieces[id];
    if (!spec.in_model[id]) continue;
    for (size_t at = piece.find(kMetaspace); at != piece.npos;
         at = piece.find(kMetaspace, at + kMetaspace.size())) {
      if (at > 0 && !piece.substr(0, at).ends_with(kMetaspace)) return false;
    }
  }
  return true;
}

// Calls `take` for each word of a piece until that returns false.
template <typename Take>
bool for_each_word(std::string_view piece, Take take) {
  size_t begin = 0;
  for (size_t at = piece.find(kMetaspace); at != piece.npos;
       at = piece.find(kMetaspace, at + kMetaspace.size())) {
    if (at == begin || piece.substr(0, at).ends_with(kMetaspace)) continue;
    if (!take(piece.substr(begin, at - begin))) return false;
    begin = at;
  }
  return take(piece.substr(begin));
}

// An added token of the second pass is searched in normalized text, so it is normalized as well.
std::vector<AddedToken> normalized_tokens(std::vector<AddedToken> tokens,
                                          const std::vector<Rewrite>& normalizer) {
  RegexScratch scratch;
  for (AddedToken& token : tokens) {
    if (!token.normalized) continue;
    for (const Rewrite& step : normalizer) apply(step, true, scratch, token.content);
  }
  return tokens;
}

// The walls inside a stretch of `size` bytes at `begin`, counted from there.
std::vector<size_t> walls_inside(std::span<const size_t> walls, size_t begin, size_t size) {
  std::vector<size_t> inside;
  for (const size_t wall : walls) {
    if (wall > begin && wall < begin + size) inside.push_back(wall - begin);
  }
  return inside;
}

// Where walls of the source stand in a rewritten text: before the first byte from behind them.
std::vector<size_t> walls_after(const std::vector<size_t>& walls, const Rewritten& text) {
  std::vector<size_t> after;
  for (const size_t wall : walls) {
    const auto at =
        std::ranges::find_if(text.from, [&](const ByteRange& from) { return from.begin >= wall; });
    after.push_back(static_cast<size_t>(at - text.from.begin()));
  }
  return after;
}

}  // namespace

// Memory of one call, kept from stretch to stretch.
struct Encoder::Work {
  PreTokenizer::Scratch pieces;
  Bpe::Scratch merging;
  RegexScratch regex;
  std::string spaced;
  std::vector<int32_t> ids;
  std::vector<uint32_t> lengths;  // of the tokens of a piece, as the model counts
  std::vector<size_t> letters;    // by place in a piece as it is written: the byte in the piece
};

Encoder::Encoder(TokenizerSpec spec)
    : bytes_per_id(most_bytes_per_id(spec)),
      tokens(spec.token_bytes),
      pieces(spec.pieces),
      vocabulary(spec.token_bytes.size()),
      normalizer(std::move(spec.normalizer)),
      before_split(std::move(spec.before_split)),
      pre_tokenizer(std::move(spec.splits), spec.add_prefix_space, std::move(spec.byte_level)),
      bpe(std::move(spec.bpe), vocabulary),
      added(normalized_tokens(spec.added, normalizer)),
      as_written(spec.added),
      special(spec.token_bytes.size(), false),
      prefix(std::move(spec.prefix)),
      suffix(std::move(spec.suffix)),
      bos(spec.bos),
      eos(spec.eos),
      leading_space(spec.leading_space),
      replace_each_byte(spec.replace_each_byte),
      trim_offsets(spec.trim_offsets),
      trim_keeps_prefix(spec.trim_keeps_prefix),
      characters_(spec.bpe.characters) {
  const TokenBytes& written = pieces.size() > 0 ? pieces : tokens;
  for (int32_t id = 0; id < tokens.size(); ++id) {
    if (spec.in_model[id]) vocabulary.insert(written[id], id);
  }
  for (const AddedToken& token : spec.added) {
    special[token.id] = special[token.id] || token.special;
    added_ids.emplace(token.content, token.id);
  }
  words_are_apart_ = words_are_apart(spec, vocabulary);
}

bool Encoder::encode(std::string_view text, const EncodeOptions& options, size_t most,
                     std::vector<int32_t>& ids) const {
  Work work;
  if (!options.parse_added) return encode_stretch(text, true, options, most, work, ids);
  std::vector<AddedTokenSpan> spans;
  added.split_raw(text, {options.parse_special, options.walls}, spans);
  for (const AddedTokenSpan& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
      if (ids.size() > most) return false;
      continue;
    }
    const size_t begin = static_cast<size_t>(span.text.data() - text.data());
    EncodeOptions here = options;
    const std::vector<size_t> walls = walls_inside(options.walls, begin, span.text.size());
    here.walls = walls;
    if (!encode_stretch(span.text, begin == 0, here, most, work, ids)) return false;
  }
  return true;
}

// Text in which no raw added token is left.
bool Encoder::encode_stretch(std::string_view text, bool first, const EncodeOptions& options,
                             size_t most, Work& work, std::vector<int32_t>& ids) const {
  std::string normalized;
  std::vector<size_t> walls(options.walls.begin(), options.walls.end());
  const bool search = options.parse_added && added.has_normalized();
  if (!normalizer.empty()) {
    if (search && !walls.empty()) {
      Rewritten traced = unchanged(text);
      for (const Rewrite& step : normalizer) apply(step, first, work.regex, traced);
      walls = walls_after(walls, traced);
    }
    normalized = text;
    for (const Rewrite& step : normalizer) apply(step, first, work.regex, normalized);
    text = normalized;
  }
  if (!search) return encode_plain(text, first, most, work, ids);
  std::vector<AddedTokenSpan> spans;
  added.split_normalized(text, {options.parse_special, walls}, spans);
  for (const AddedTokenSpan& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
      if (ids.size() > most) return false;
    } else if (!encode_plain(span.text, first && span.text.data() == text.data(), most, work,
                             ids)) {
      return false;
    }
  }
  return true;
}

// Text without added tokens.
bool Encoder::encode_plain(std::string_view text, bool first, size_t most, Work& work,
                           std::vector<int32_t>& ids) const {
  if (!before_split.empty()) {
    work.spaced = text;
    for (const Rewrite& step : before_split) apply(step, first, work.regex, work.spaced);
    text = work.spaced;
  }
  const auto merge = [&](std::string_view piece) {
    bpe.encode(piece, work.merging, ids);
    return ids.size() <= most;
  };
  return pre_tokenizer.split(text, work.pieces, [&](std::string_view piece) {
    return words_are_apart_ ? for_each_word(piece, merge) : merge(piece);
  });
}

void Encoder::encode_with_offsets(std::string_view text, const EncodeOptions& options,
                                  std::vector<TokenSpan>& spans) const {
  Work work;
  std::vector<AddedTokenSpan> raw;
  if (options.parse_added) {
    added.split_raw(text, {options.parse_special, options.walls}, raw);
  } else if (!text.empty()) {
    raw.push_back({text, -1});
  }
  for (const AddedTokenSpan& stretch : raw) {
    const size_t base = static_cast<size_t>(stretch.text.data() - text.data());
    if (stretch.id >= 0) {
      spans.push_back({stretch.id, base, base + stretch.text.size()});
      continue;
    }
    Rewritten normalized = unchanged(stretch.text);
    for (const Rewrite& step : normalizer) apply(step, base == 0, work.regex, normalized);
    std::vector<AddedTokenSpan> parts;
    if (options.parse_added) {
      const auto walls =
          walls_after(walls_inside(options.walls, base, stretch.text.size()), normalized);
      added.split_normalized(normalized.text, {options.parse_special, walls}, parts);
    } else {
      parts.push_back({normalized.text, -1});
    }
    for (const AddedTokenSpan& part : parts) {
      const auto begin = part.text.data() - normalized.text.data();
      const auto end = begin + std::ssize(part.text);
      if (part.id >= 0) {
        spans.push_back({part.id, base + normalized.from[static_cast<size_t>(begin)].begin,
                         base + normalized.from[static_cast<size_t>(end) - 1].end});
        continue;
      }
      encode_plain_with_offsets({std::string(part.text),
                                 {normalized.from.begin() + begin, normalized.from.begin() + end}},
                                base == 0 && begin == 0, base, work, spans);
    }
  }
  for (size_t i = 0; trim_offsets && i < spans.size(); ++i) trim(text, spans[i], i == 0);
}

void Encoder::encode_plain_with_offsets(Rewritten text, bool first, size_t base, Work& work,
                                        std::vector<TokenSpan>& spans) const {
  for (const Rewrite& step : before_split) apply(step, first, work.regex, text);
  const auto put = [&](std::string_view piece) {
    // Where its bytes stand in `text`. A prefix space has the source of the byte behind it.
    const std::string& spaced = work.pieces.spaced;
    const bool is_spaced = !std::less()(piece.data(), spaced.data()) &&
                           std::less()(piece.data(), spaced.data() + spaced.size());
    const auto from = [&](size_t i) {
      ptrdiff_t at = piece.data() - text.text.data() + static_cast<ptrdiff_t>(i);
      if (is_spaced) {
        const ptrdiff_t in_spaced = piece.data() - spaced.data() + static_cast<ptrdiff_t>(i);
        at = work.pieces.spaced_from - text.text.data() + std::max<ptrdiff_t>(in_spaced - 1, 0);
      }
      return text.from[static_cast<size_t>(at)];
    };
    work.ids.clear();
    work.lengths.clear();
    bpe.encode_with_lengths(piece, work.merging, work.ids, work.lengths);
    work.letters.clear();
    for (size_t i = 0; i < piece.size(); ++i) {
      work.letters.insert(work.letters.end(), characters_ ? 1 : letter_length(piece[i]), i);
    }
    size_t at = 0;
    for (size_t i = 0; i < work.ids.size(); ++i) {
      const size_t end = at + work.lengths[i];
      spans.push_back({work.ids[i], base + from(work.letters[at]).begin,
                       base + from(work.letters[end - 1]).end});
      at = end;
    }
    return true;
  };
  pre_tokenizer.split(text.text, work.pieces, [&](std::string_view piece) {
    return words_are_apart_ ? for_each_word(piece, put) : put(piece);
  });
}

// Takes the spaces at the ends of a token off its offsets (post-processor ByteLevel).
void Encoder::trim(std::string_view text, TokenSpan& span, bool first) const {
  const std::string_view token = tokens[span.id];
  const size_t content_begin = std::min(token.find_first_not_of(' '), token.size());
  size_t leading = content_begin;
  const size_t trailing = token.size() - std::min(token.find_last_not_of(' ') + 1, token.size());
  if ((first || span.begin == 0) && trim_keeps_prefix && leading > 0) --leading;
  for (; leading > 0 && span.begin < span.end; --leading) {
    span.begin += utf8_step(text.substr(span.begin)).bytes;
  }
  for (size_t i = 0; i < trailing && span.begin < span.end; ++i) {
    do --span.end;
    while (span.begin < span.end && (static_cast<uint8_t>(text[span.end]) & 0xC0) == 0x80);
  }
}

}  // namespace octet::text
