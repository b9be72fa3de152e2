#include "engine/batch_memory.h"

#include <algorithm>
#include <cstring>

namespace octet::engine {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Whether the logits of token r are wanted.
bool wants(const SequenceTokens& part, int64_t r) {
  const bool is_last = r + 1 == static_cast<int64_t>(part.tokens.size());
  return part.logits == Wanted::all || (part.logits == Wanted::last && is_last) ||
         (r >= part.scored_first && r < part.scored_first + part.scored_rows);
}

// Places tensors one behind the other, in a host buffer and at the same offsets in a device buffer.
class Packer {
 public:
  Packer(const Buffer& host, const Buffer& device) : host_(host), device_(device) {}

  // A tensor on the device, and where its values are to be written on the host, all `fill` bytes.
  template <typename T>
  std::span<T> place(Tensor& tensor, DType type, Shape shape, uint8_t fill = 0) {
    tensor = device_.tensor(type, shape, used_);
    T* const values = static_cast<T*>(host_.tensor(type, shape, used_).data);
    std::memset(static_cast<void*>(values), fill, static_cast<size_t>(tensor.bytes()));
    used_ = aligned(used_ + static_cast<size_t>(tensor.bytes()));
    return {values, static_cast<size_t>(tensor.bytes()) / sizeof(T)};
  }
  std::span<int32_t> ids(Tensor& tensor, Shape shape, uint8_t fill = 0) {
    return place<int32_t>(tensor, DType::i32, shape, fill);
  }

  void copy(ops::Backend& backend) const {
    // The last tensor may end where the buffers end.
    const size_t bytes = std::min(used_, device_.bytes());
    const Shape shape{static_cast<int64_t>(bytes)};
    backend.copy(host_.tensor(DType::u8, shape), device_.tensor(DType::u8, shape));
  }

 private:
  const Buffer& host_;
  const Buffer& device_;
  size_t used_ = 0;
};

}  // namespace

size_t BatchMemory::device_bytes(const StepLimits& limits) {
  const auto ids = [](int64_t count) {
    return aligned(static_cast<size_t>(count) * sizeof(int32_t));
  };
  return 4 * ids(limits.rows) + ids(limits.logits_rows) + ids(3 * limits.sequences) +
         aligned(static_cast<size_t>(limits.logits_rows) * sizeof(ops::SampleRow)) +
         ids(limits.sequences * limits.blocks_per_sequence);
}

BatchMemory::BatchMemory(ops::Backend& backend, const StepLimits& limits, int depth)
    : backend_(backend),
      limits_(limits),
      device_(backend.alloc(device_bytes(limits), "step inputs")) {
  for (int i = 0; i < depth; ++i) {
    staging_.push_back(backend.alloc_host(device_.bytes(), "step inputs"));
  }
}

const StepInputs& BatchMemory::build(std::span<const SequenceTokens> parts,
                                     std::span<const ops::SampleRow> samples,
                                     const StepPadding& padding) {
  inputs_ = {};
  ops::Batch& batch = inputs_.batch;
  int64_t logits = 0;
  bool takes = padding.rows > 0;  // a bucket's steps all do, whether or not their tokens are known
  for (const SequenceTokens& part : parts) {
    const auto rows = static_cast<int64_t>(part.tokens.size());
    batch.sequences.push_back({batch.rows, rows, part.first_position});
    batch.rows += rows;
    batch.max_context = std::max(batch.max_context, part.first_position + rows);
    for (int64_t r = 0; r < rows; ++r) logits += wants(part, r);
    takes |= part.token_row >= 0;
  }
  if (const int64_t extra = padding.rows - batch.rows; extra > 0) {
    invariant(batch.rows == logits && batch.rows == static_cast<int64_t>(parts.size()),
              "only steps of one-token parts that want logits are padded");
    logits += extra;
    while (batch.rows < padding.rows) batch.sequences.push_back({batch.rows++, 0, 0});
  }
  batch.max_context = std::max(batch.max_context, padding.max_context);
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  const int64_t table_blocks =
      std::max<int64_t>(1, (batch.max_context + limits_.block_tokens - 1) / limits_.block_tokens);
  invariant(batch.rows <= limits_.rows && sequences <= limits_.sequences &&
                logits <= limits_.logits_rows && table_blocks <= limits_.blocks_per_sequence,
            "the step exceeds the limits that its memory was sized for");
  invariant(samples.empty() || static_cast<int64_t>(samples.size()) <= logits,
            "there is a row of logits for each token that is sampled");

  Packer packer(staging_[next_], device_);
  next_ = (next_ + 1) % staging_.size();
  const auto tokens = packer.ids(batch.tokens, {batch.rows});
  const auto positions = packer.ids(batch.positions, {batch.rows});
  const auto row_sequence = packer.ids(batch.row_sequence, {batch.rows}, /*fill=*/0xFF);
  const auto spans = packer.ids(batch.spans, {sequences, 3});
  std::span<int32_t> token_rows, logits_rows;
  std::span<ops::SampleRow> sample_rows;
  if (takes) token_rows = packer.ids(inputs_.token_rows, {batch.rows}, /*fill=*/0xFF);
  if (logits > 0) logits_rows = packer.ids(batch.logits_rows, {logits});
  if (!samples.empty()) {
    sample_rows = packer.place<ops::SampleRow>(inputs_.sample_rows, DType::u8,
                                               {logits, int64_t{sizeof(ops::SampleRow)}});
    std::ranges::fill(sample_rows, ops::SampleRow{});  // greedy: what padding keeps
    std::ranges::copy(samples, sample_rows.begin());
  }
  const auto table = packer.ids(batch.block_table, {sequences, table_blocks}, /*fill=*/0xFF);

  size_t next_logit = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const ops::SequenceRows& at = batch.sequences[i];
    spans[3 * i] = static_cast<int32_t>(at.first_row);
    spans[3 * i + 1] = static_cast<int32_t>(at.rows);
    spans[3 * i + 2] = static_cast<int32_t>(at.first_position);
    if (i >= parts.size()) continue;  // padding
    const SequenceTokens& part = parts[i];
    const auto first = static_cast<size_t>(at.first_row);
    for (size_t r = 0; r < part.tokens.size(); ++r) {
      tokens[first + r] = part.tokens[r];
      positions[first + r] = static_cast<int32_t>(part.first_position + static_cast<int64_t>(r));
      row_sequence[first + r] = static_cast<int32_t>(i);
      if (wants(part, static_cast<int64_t>(r))) {
        logits_rows[next_logit++] = static_cast<int32_t>(first + r);
      }
    }
    if (part.token_row >= 0) {
      tokens[first] = 0;  // taken on the device
      token_rows[first] = part.token_row;
    }
    const size_t count = std::min(part.blocks.size(), static_cast<size_t>(table_blocks));
    std::ranges::copy(part.blocks.first(count),
                      table.begin() + static_cast<int64_t>(i) * table_blocks);
  }
  packer.copy(backend_);
  return inputs_;
}

}  // namespace octet::engine
