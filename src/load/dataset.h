// What is asked: requests made of a seed, or read from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "load/request.h"

namespace octet::load {

// What is known of the model's tokens. Without any of it prompts are texts of common words, a token
// being about a word, and the server's usage says how many tokens they were.
struct Tokens {
  std::vector<int32_t> ids;  // from which random prompts are drawn
  std::function<std::string(std::span<const int32_t>)> decode;  // null: not known
  std::function<int64_t(const std::string&)> count;             // null: not known
  // Prompts of ids rather than of text: the completions API takes both, and ids are exact.
  bool send_ids = true;
};

// English words, for prompts of text, and for a server's /tokenize.
std::string common_words();

struct Length {
  int64_t prompt = 1024, output = 128;
};
// "1024:128". Error, naming `where`.
Length parse_length(const std::string& text, const std::string& where);

struct RandomOptions {
  int64_t count = 1000;
  Length length;
  // Lengths are uniform in [(1 - ratio) * length, (1 + ratio) * length], at least 1.
  double range_ratio = 0;
  int64_t prefix = 0;  // tokens before them that all prompts share
  uint64_t seed = 0;
};
std::vector<LoadRequest> random_requests(const RandomOptions& options, const Tokens& tokens);

// Groups of prompts that share a long beginning, in random order: a measure of prefix caching.
struct SharedPrefixOptions {
  int64_t groups = 64, prompts_per_group = 16;
  int64_t prefix = 2048, question = 128, output = 256;
  uint64_t seed = 0;
};
std::vector<LoadRequest> shared_prefix_requests(const SharedPrefixOptions& options,
                                                const Tokens& tokens);

// 70 % short, 20 % medium and 10 % long requests, in random order: of each kind the share of
// `count`, rounded, so that a seed changes the order and the prompts and not the amount of work.
struct MixedOptions {
  int64_t count = 100;
  Length brief{64, 32}, medium{512, 128}, lengthy{2048, 256};
  uint64_t seed = 0;
};
std::vector<LoadRequest> mixed_requests(const MixedOptions& options, const Tokens& tokens);

struct FileOptions {
  std::filesystem::path path;
  int64_t count = 1000;               // at most; a shorter file is repeated if `repeat`
  std::optional<int64_t> output_len;  // instead of what the file says
  bool repeat = true;
  uint64_t seed = 0;  // of the order (ShareGPT)
};
// One JSON object a line: {"prompt": text or ids} or {"messages": [...]}, and "output_tokens" or
// "max_tokens" if the line says so (else 128). Throws Error naming file and line.
std::vector<LoadRequest> jsonl_requests(const FileOptions& options, const Tokens& tokens);

// [{"conversations": [{"from", "value"}, ...]}, ...]: the first turn is the prompt, and the second
// says how many tokens are asked for. As vLLM's load test does it, conversations of fewer than two
// turns, prompts or answers under 4 tokens, prompts over 1,024 and sums over 2,048 are left out.
// Where tokens cannot be counted, a token is taken as 4 bytes.
std::vector<LoadRequest> sharegpt_requests(const FileOptions& options, const Tokens& tokens);

}  // namespace octet::load
