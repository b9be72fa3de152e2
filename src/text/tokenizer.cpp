#include "text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/encoder.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

void refuse_too_long(std::string_view text) {
  if (text.size() <= kMaxTextBytes) return;
  throw Error({.what = "text is too long to tokenize",
               .value = std::to_string(text.size()) + " bytes",
               .accepted = "at most 1 GiB"});
}

}  // namespace

struct Tokenizer::Impl : Encoder {
  using Encoder::Encoder;
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
  refuse_too_long(text);
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
  if (!impl_->encode(text, options, enough, ids)) return std::nullopt;

  if (options.add_special_tokens) {
    if (impl_->doubles_bos(begin, ids)) {
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(begin) - 1);
    }
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  if (ids.size() > most) return std::nullopt;
  return ids;
}

std::vector<TokenSpan> Tokenizer::encode_with_offsets(std::string_view text,
                                                      const EncodeOptions& options) const {
  refuse_too_long(text);
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<TokenSpan> spans;
  impl_->encode_with_offsets(text, options, spans);
  if (!options.add_special_tokens) return spans;
  std::vector<TokenSpan> all;
  for (const int32_t id : impl_->prefix) all.push_back({id, 0, 0});
  std::vector<int32_t> ids = impl_->prefix;
  if (!spans.empty()) ids.push_back(spans.front().id);
  if (impl_->doubles_bos(impl_->prefix.size(), ids)) all.pop_back();
  all.insert(all.end(), spans.begin(), spans.end());
  for (const int32_t id : impl_->suffix) all.push_back({id, 0, 0});
  return all;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool first = true;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    std::string_view token = impl_->tokens[id];
    if (impl_->leading_space == LeadingSpace::drop_one && bytes.empty() && token.starts_with(' ') &&
        first) {
      token.remove_prefix(1);
      first = false;
    } else if (impl_->leading_space == LeadingSpace::drop_first_token && first) {
      token.remove_prefix(std::min(token.find_first_not_of(' '), token.size()));
    }
    first = first && token.empty() && impl_->leading_space == LeadingSpace::drop_one;
    bytes += token;
  }
  if (is_valid_utf8(bytes)) return bytes;
  return replace_invalid_utf8(
      bytes, impl_->replace_each_byte ? Replacement::each_byte : Replacement::each_subpart);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->tokens[id];
}

bool Tokenizer::replaces_each_byte() const {
  return impl_->replace_each_byte;
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

std::vector<TokenSpan> Tokenizer::added_token_places(std::string_view text) const {
  std::vector<TokenSpan> places;
  impl_->as_written.for_each_place(text, [&](int32_t id, size_t begin, size_t end) {
    places.push_back({id, begin, end});
  });
  return places;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view content) const {
  if (const auto it = impl_->added_ids.find(std::string(content)); it != impl_->added_ids.end()) {
    return it->second;
  }
  const int32_t id = impl_->vocabulary.find(content);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

}  // namespace octet::text
