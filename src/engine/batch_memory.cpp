#include "engine/batch_memory.h"

#include <algorithm>

namespace octet::engine {

BatchMemory::BatchMemory(ops::Backend& backend, const StepLimits& limits) : limits_(limits) {
  const int64_t table = limits.sequences * limits.blocks_per_sequence;
  const int64_t count = 2 * limits.rows + table + limits.logits_rows;
  buffer_ = backend.alloc(static_cast<size_t>(count) * sizeof(int32_t), "step inputs");
  size_t offset = 0;
  const auto take = [&](int64_t elements) {
    Tensor tensor = buffer_.tensor(DType::i32, {elements}, offset);
    offset += static_cast<size_t>(elements) * sizeof(int32_t);
    return tensor;
  };
  tokens_ = take(limits.rows);
  positions_ = take(limits.rows);
  block_table_ = take(table);
  logits_rows_ = take(limits.logits_rows);
}

Tensor BatchMemory::upload(ops::Backend& backend, std::vector<int32_t>& host, const Tensor& device,
                           Shape shape) {
  if (host.empty()) return {};
  const Tensor target(device.data, DType::i32, shape, device.device);
  backend.copy(Tensor(host.data(), DType::i32, shape), target);
  return target;
}

const ops::Batch& BatchMemory::build(ops::Backend& backend, std::span<const SequenceTokens> parts) {
  batch_ = {};
  host_tokens_.clear();
  host_positions_.clear();
  host_logits_rows_.clear();
  size_t max_blocks = 1;
  for (const SequenceTokens& part : parts) max_blocks = std::max(max_blocks, part.blocks.size());
  host_table_.assign(parts.size() * max_blocks, -1);

  for (size_t i = 0; i < parts.size(); ++i) {
    const SequenceTokens& part = parts[i];
    const auto first_row = static_cast<int64_t>(host_tokens_.size());
    const auto rows = static_cast<int64_t>(part.tokens.size());
    batch_.sequences.push_back({first_row, rows, part.first_position});
    host_tokens_.insert(host_tokens_.end(), part.tokens.begin(), part.tokens.end());
    for (int64_t r = 0; r < rows; ++r) {
      host_positions_.push_back(static_cast<int32_t>(part.first_position + r));
      if (part.logits == Wanted::all || (part.logits == Wanted::last && r == rows - 1)) {
        host_logits_rows_.push_back(static_cast<int32_t>(first_row + r));
      }
    }
    std::ranges::copy(part.blocks, host_table_.begin() + static_cast<int64_t>(i * max_blocks));
    if (part.device_token) host_tokens_[static_cast<size_t>(first_row)] = 0;  // overwritten below
  }
  batch_.rows = static_cast<int64_t>(host_tokens_.size());
  invariant(batch_.rows <= limits_.rows &&
                static_cast<int64_t>(parts.size()) <= limits_.sequences &&
                static_cast<int64_t>(max_blocks) <= limits_.blocks_per_sequence &&
                static_cast<int64_t>(host_logits_rows_.size()) <= limits_.logits_rows,
            "the step exceeds the limits that its memory was sized for");

  batch_.tokens = upload(backend, host_tokens_, tokens_, {batch_.rows});
  batch_.positions = upload(backend, host_positions_, positions_, {batch_.rows});
  batch_.block_table =
      upload(backend, host_table_, block_table_,
             {static_cast<int64_t>(parts.size()), static_cast<int64_t>(max_blocks)});
  batch_.logits_rows = upload(backend, host_logits_rows_, logits_rows_,
                              {static_cast<int64_t>(host_logits_rows_.size())});
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].device_token) continue;
    backend.copy(parts[i].device_token, batch_.tokens.slice(batch_.sequences[i].first_row, 1));
  }
  return batch_;
}

}  // namespace octet::engine
