#include "text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The most bytes of text that one id can stand for; unlimited where text may vanish without an id.
size_t most_bytes_per_id(const TokenizerSpec& spec) {
  const bool bytes_vanish = std::ranges::any_of(spec.bpe.bytes, [&](const ByteSymbols& byte) {
    return byte.count == 0 || (byte.unknown && spec.bpe.fuse_unknown);
  });
  const bool splits_drop = std::ranges::any_of(spec.splits, [](const SplitStage& split) {
    return split.behavior == SplitBehavior::removed;
  });
  const bool tokens_strip = std::ranges::any_of(
      spec.added, [](const AddedToken& token) { return token.lstrip || token.rstrip; });
  if (bytes_vanish || splits_drop || tokens_strip) return kUnlimited;
  size_t most = 1;
  for (const std::string& bytes : spec.token_bytes) most = std::max(most, bytes.size());
  for (const AddedToken& token : spec.added) most = std::max(most, token.content.size());
  return most;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec)
      : bytes_per_id(most_bytes_per_id(spec)),
        tokens(spec.token_bytes),
        vocabulary(spec.token_bytes.size()),
        pre_tokenizer(std::move(spec.splits), spec.add_prefix_space, std::move(spec.byte_level)),
        bpe(std::move(spec.bpe), vocabulary),
        added(spec.added),
        special(spec.token_bytes.size(), false),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)),
        bos(spec.bos),
        eos(spec.eos) {
    for (int32_t id = 0; id < tokens.size(); ++id) {
      if (spec.in_model[id]) vocabulary.insert(tokens[id], id);
    }
    for (const AddedToken& token : spec.added) {
      special[token.id] = special[token.id] || token.special;
      added_ids.emplace(token.content, token.id);
    }
  }

  // Appends the ids of text without added tokens. Stops, and returns false, once there are more
  // than `most`.
  bool encode_plain(std::string_view text, size_t most, PreTokenizer::Scratch& pieces,
                    Bpe::Scratch& merging, std::vector<int32_t>& ids) const {
    return pre_tokenizer.split(text, pieces, [&](std::string_view piece) {
      bpe.encode(piece, merging, ids);
      return ids.size() <= most;
    });
  }

  size_t bytes_per_id;
  TokenBytes tokens;
  StringIdMap vocabulary;  // views into `tokens`
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher added;
  std::vector<bool> special;
  std::unordered_map<std::string, int32_t> added_ids;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::string tokenizer = read_text(directory / "tokenizer.json");
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const std::string config = std::filesystem::exists(config_path) ? read_text(config_path) : "";
  return from_json(tokenizer, config, directory.string());
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer, std::string_view config,
                               std::string_view name) {
  const std::filesystem::path directory(name);
  return Tokenizer(std::make_unique<const Impl>(
      parse_tokenizer(tokenizer, (directory / "tokenizer.json").string(), config,
                      (directory / "tokenizer_config.json").string())));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return *encode_at_most(kUnlimited, text, options);
}

std::optional<std::vector<int32_t>> Tokenizer::encode_at_most(size_t most, std::string_view text,
                                                              const EncodeOptions& options) const {
  // Divided, since the product may not fit.
  if (text.size() / impl_->bytes_per_id > most) return std::nullopt;
  if (text.size() > kMaxTextBytes) {
    throw Error({.what = "text is too long to tokenize",
                 .value = std::to_string(text.size()) + " bytes",
                 .accepted = "at most 1 GiB"});
  }
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }

  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = impl_->prefix;
  const size_t begin = ids.size();
  ids.reserve(begin + std::min(text.size() / 3, most) + impl_->suffix.size() + 4);
  // One more than allowed may still become one less: see BOS below.
  const size_t enough = most == kUnlimited ? most : most + 1;
  PreTokenizer::Scratch pieces;
  Bpe::Scratch merging;
  if (options.parse_added) {
    std::vector<AddedTokenSpan> spans;
    impl_->added.split(text, options.parse_special, spans);
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        impl_->encode_plain(span.text, enough, pieces, merging, ids);
      }
      if (ids.size() > enough) return std::nullopt;
    }
  } else if (!impl_->encode_plain(text, enough, pieces, merging, ids)) {
    return std::nullopt;
  }

  if (options.add_special_tokens) {
    if (begin > 0 && begin < ids.size() && ids[begin - 1] == impl_->bos &&
        ids[begin] == impl_->bos) {
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(begin) - 1);
    }
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  if (ids.size() > most) return std::nullopt;
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes += impl_->tokens[id];
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->tokens[id];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && impl_->special[id];
}

int32_t Tokenizer::size() const {
  return impl_->tokens.size();
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}

bool Tokenizer::adds_bos() const {
  return impl_->bos && std::ranges::find(impl_->prefix, *impl_->bos) != impl_->prefix.end();
}

std::optional<int32_t> Tokenizer::token_id(std::string_view content) const {
  if (const auto it = impl_->added_ids.find(std::string(content)); it != impl_->added_ids.end()) {
    return it->second;
  }
  const int32_t id = impl_->vocabulary.find(content);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

}  // namespace octet::text
