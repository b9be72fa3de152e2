#include "server/prompt.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/worker.h"
#include "text/detokenizer.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using Ids = std::vector<int32_t>;

[[noreturn]] void refuse_prompt(const CompletionRequest& request, std::string message) {
  throw ApiError(400, std::move(message), "BadRequestError",
                 std::string(request.format->prompt_field));
}

// Of so many tokens at most, whatever is then cut off: the work on one prompt is bounded.
constexpr int64_t kTruncatedLengths = 8;

// A text is encoded up to the longest prompt that can be admitted and no further.
Ids encode_text(const PromptEncoder& with, const CompletionRequest& request,
                const std::string& text, std::span<const size_t> walls = {}) {
  int64_t most = with.max_model_len - 1;  // one is for the output
  if (request.truncation) most *= kTruncatedLengths;
  std::optional<Ids> ids = with.tokenizer.encode_at_most(
      static_cast<size_t>(most), text, {.add_special_tokens = request.add_special, .walls = walls});
  if (ids) return std::move(*ids);
  if (request.truncation) {
    refuse_prompt(request, fmt::format("The prompt has more than {} tokens ({} bytes of text), "
                                       "{} times what this model takes; send less to truncate.",
                                       most, text.size(), kTruncatedLengths));
  }
  refuse_prompt(request,
                fmt::format("The prompt has more than {} tokens ({} bytes of text); the maximum "
                            "context length is {} tokens, of which at least 1 is for the output.",
                            most, text.size(), with.max_model_len));
}

Ids encode_one(const PromptEncoder& with, const CompletionRequest& request, const Prompt& prompt) {
  if (const auto* ids = std::get_if<Ids>(&prompt)) return *ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return encode_text(with, request, *text);
  }
  const text::RenderedChat chat = with.chat->render(std::get<text::ChatInput>(prompt));
  return encode_text(with, request, chat.text, chat.walls);
}

// The answer keeps its room, and leaves the prompt one token or more.
void truncate(const PromptEncoder& with, const CompletionRequest& request, Ids& ids) {
  if (!request.truncation) return;
  const int64_t answer = request.generation.max_tokens.value_or(1);
  const int64_t fits = with.max_model_len - answer;
  if (fits < 1) {
    throw ApiError(400,
                   fmt::format("max_tokens is {}, which leaves no room for a prompt in the context "
                               "of {} tokens, however much of it is cut; accepted: at most {}",
                               answer, with.max_model_len, with.max_model_len - 1),
                   "BadRequestError", "max_tokens");
  }
  const int64_t most = std::min<int64_t>(request.truncation->most, fits);
  if (static_cast<int64_t>(ids.size()) <= most) return;
  if (request.truncation->from_the_left) ids.erase(ids.begin(), ids.end() - most);
  ids.resize(static_cast<size_t>(most));
}

void require_known(const PromptEncoder& with, const CompletionRequest& request, const Ids& ids) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < with.vocab) continue;
    refuse_prompt(request,
                  fmt::format("the prompt holds token {}, and the model knows 0 to {} only: its "
                              "tokenizer has more tokens than its embedding",
                              id, with.vocab - 1));
  }
}

// The text as it was sent, or else what its tokens say.
void add_echo(const PromptEncoder& with, const CompletionRequest& request, const Prompt& prompt,
              EncodedPrompt& encoded) {
  const auto* text = std::get_if<std::string>(&prompt);
  encoded.text = text && !request.truncation
                     ? *text
                     : with.tokenizer.decode(encoded.ids, request.skip_special);
  text::Detokenizer detokenizer(with.tokenizer, request.skip_special);
  size_t chars = 0, bytes = 0;
  for (const int32_t id : encoded.ids) {
    encoded.offsets.push_back(chars);
    std::string piece = detokenizer.push(id);
    // A SentencePiece-style decode drops the first space.
    if (bytes == 0 && piece.starts_with(' ') && !encoded.text.starts_with(' ')) piece.erase(0, 1);
    bytes += piece.size();
    chars += count_chars(piece);
  }
}

std::vector<EncodedPrompt> encode_all(const PromptEncoder& with, const CompletionRequest& request,
                                      const std::stop_token& gone) {
  std::vector<EncodedPrompt> all;
  for (const Prompt& prompt : request.prompts) {
    if (gone.stop_requested()) return all;
    EncodedPrompt& encoded = all.emplace_back();
    encoded.ids = encode_one(with, request, prompt);
    truncate(with, request, encoded.ids);
    require_known(with, request, encoded.ids);
    if (request.echo) add_echo(with, request, prompt, encoded);
  }
  return all;
}

}  // namespace

// Every byte that does not continue a character begins one.
size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::vector<int32_t>> tokens_of_bad_words(const text::Tokenizer& tokenizer,
                                                      const std::vector<std::string>& words,
                                                      int64_t vocab) {
  std::vector<Ids> all;
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    const text::EncodeOptions plain{.add_special_tokens = false};
    const Ids alone = tokenizer.encode(bare, plain), spaced = tokenizer.encode(" " + bare, plain);
    if (alone.empty()) continue;
    all.push_back(alone);
    if (spaced.size() == alone.size() && spaced[0] != alone[0]) all.push_back(spaced);
  }
  std::erase_if(all, [&](const Ids& ids) {
    return std::ranges::any_of(ids, [&](int32_t id) { return id >= vocab; });
  });
  return all;
}

asio::awaitable<std::vector<EncodedPrompt>> PromptEncoder::encode(const CompletionRequest& request,
                                                                  std::stop_token gone) const {
  constexpr size_t is_long = 32 << 10;
  size_t bytes = 0;
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) bytes += text->size();
    if (std::holds_alternative<text::ChatInput>(prompt)) bytes = is_long;
  }
  if (bytes < is_long) co_return encode_all(*this, request, gone);
  std::vector<EncodedPrompt> all;
  co_await on_worker(workers, [&] { all = encode_all(*this, request, gone); });
  co_return all;
}

}  // namespace octet::server
