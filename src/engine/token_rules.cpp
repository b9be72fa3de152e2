#include "engine/token_rules.h"

#include <algorithm>
#include <limits>

namespace octet::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

TokenRules::TokenRules(const Sampling& sampling, std::span<const int32_t> prompt,
                       int32_t min_tokens, std::vector<int32_t> end_ids, int64_t vocab,
                       std::shared_ptr<TokenConstraint> constraint)
    : repetition_(sampling.repetition_penalty),
      presence_(sampling.presence_penalty),
      frequency_(sampling.frequency_penalty),
      min_tokens_(min_tokens),
      end_ids_(std::move(end_ids)),
      constraint_(std::move(constraint)) {
  if (!sampling.allowed.empty()) {
    allowed_.resize(static_cast<size_t>((vocab + 31) / 32));
    for (const int32_t token : sampling.allowed) {
      int32_t& word = allowed_[static_cast<size_t>(token / 32)];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | 1u << token % 32);
    }
  }
  for (const auto& [token, bias] : sampling.logit_bias) edit_of(token).bias += bias;
  for (const std::vector<int32_t>& word : sampling.bad_words) {
    if (word.size() == 1) edit_of(word[0]).bias = kNever;
    if (word.size() > 1) bad_words_.push_back(word);
  }
  if (repetition_ != 1.0f) {
    for (const int32_t token : prompt) edit_of(token).repetition = repetition_;
  }
}

bool TokenRules::needed(const Sampling& sampling, int32_t min_tokens,
                        const std::shared_ptr<TokenConstraint>& constraint) {
  return min_tokens > 0 || constraint || sampling.repetition_penalty != 1.0f ||
         sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f ||
         !sampling.logit_bias.empty() || !sampling.allowed.empty() || !sampling.bad_words.empty();
}

ops::LogitEdit& TokenRules::edit_of(int32_t token) {
  const auto [found, is_new] = where_.emplace(token, edits_.size());
  if (is_new) {
    edits_.push_back({.token = token});
    counts_.push_back(0);
  }
  return edits_[found->second];
}

void TokenRules::edit(int32_t row, int32_t index, std::vector<ops::LogitEdit>& out) const {
  const size_t begin = out.size();
  out.insert(out.end(), edits_.begin(), edits_.end());
  std::vector<int32_t> never;
  if (index < min_tokens_) never = end_ids_;
  for (const std::vector<int32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (before <= output_.size() &&
        std::equal(word.begin(), word.end() - 1,
                   output_.end() - static_cast<std::ptrdiff_t>(before))) {
      never.push_back(word.back());
    }
  }
  std::ranges::sort(never);
  never.erase(std::unique(never.begin(), never.end()), never.end());
  for (const int32_t token : never) {
    const auto found = where_.find(token);
    if (found == where_.end()) {
      out.push_back({.token = token, .bias = kNever});
    } else {
      out[begin + found->second].bias = kNever;
    }
  }
  for (size_t i = begin; i < out.size(); ++i) out[i].row = row;
}

bool TokenRules::mask(std::span<int32_t> words) {
  const bool constrained = constraint_ && constraint_->fill(words);
  if (allowed_.empty()) return constrained;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = constrained ? words[i] & allowed_[i] : allowed_[i];
  }
  return true;
}

bool TokenRules::accept(int32_t token) {
  if (counts()) {
    ops::LogitEdit& edit = edit_of(token);
    const int32_t count = ++counts_[where_.at(token)];
    edit.repetition = repetition_;
    edit.subtract = frequency_ * static_cast<float>(count) + presence_;
  }
  if (!bad_words_.empty()) output_.push_back(token);
  return !constraint_ || constraint_->accept(token);
}

}  // namespace octet::engine
