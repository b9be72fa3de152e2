// The host's part of attention_rows.cuh, and the merge of splits.
#include "backends/cuda/kernels/attention_rows.cuh"

namespace octet::cuda {
namespace {

constexpr int kMergeThreads = 128;

// The splits of one row, ascending. Grid: (kv_heads, few * group, range).
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ RowParams p) {
  allow_next();
  wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int sequence = p.first_sequence + static_cast<int>(blockIdx.z);
  const Span span = load_span(p.spans, sequence);
  if (span.rows > p.few || row >= span.rows * p.group) return;
  const int position = span.first_position + row / p.group;
  const int first = visible_begin(position, p.window) / kSplit, last = position / kSplit;
  const int token = span.first_row + row / p.group, head = kv_head * p.group + row % p.group;
  void* const out = p.out.at(token, head);
  for (int d = static_cast<int>(threadIdx.x); d < p.dim; d += kMergeThreads) {
    float max = attention_rule::kNoMax, sum = 0.0f, o = 0.0f;
#pragma unroll 8
    for (int split = first; split <= last; ++split) {
      const int64_t at = p.part(split % p.slots, sequence, kv_head, row);
      const float2 ml = p.part_ml[at];
      const float next = p.part_o[at * p.dim + d];
      o = join(o, next, join(max, sum, ml.x, ml.y));
    }
    store_element(p.out.type, out, d, normalized(o, sum));
    if (d == 0 && p.lse) p.lse[token * p.lse_stride + head] = log_sum_exp(max, sum);
  }
}

int64_t part_rows(const RowParams& p) {
  return int64_t{p.slots} * p.kv_heads * p.few * p.group;
}

}  // namespace

const char* refuse_rows(const ops::Batch& batch, const Tensor& q, const Tensor& out,
                        const Tensor& lse) {
  const auto is_table = [](const Tensor& t) { return t && t.type == DType::i32; };
  if (q.shape.rank != 3 || q.shape != out.shape || q.shape[0] != batch.rows ||
      (lse && (lse.rows() != q.shape[0] || lse.cols() != q.shape[1]))) {
    return "shapes do not fit";
  }
  if (!is_float_type(q.type) || (out.type != DType::f32 && out.type != DType::bf16) ||
      (lse && lse.type != DType::f32)) {
    return "unsupported types";
  }
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  if (!is_table(batch.block_table) || batch.block_table.shape.rank != 2 || !is_table(batch.spans) ||
      !batch.spans.contiguous() || !is_table(batch.row_sequence) ||
      batch.block_table.shape[0] < sequences || batch.spans.count() < 3 * sequences ||
      batch.row_sequence.count() < batch.rows) {
    return "the batch lacks spans, row_sequence or a block table";
  }
  return nullptr;
}

void plan_rows(const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
               const Tensor& lse, int64_t kv_heads, int64_t blocks, int64_t block_tokens,
               RowParams& p) {
  p.out = HeadsView(out);
  p.out_pairs = out.shape[2] % 2 == 0 && rows_aligned(out, 2 * size_of(out.type));
  if (lse) {
    p.lse = lse.as<float>();
    p.lse_stride = lse.row_stride();
  }
  p.pages = PagedRows(batch.block_table, block_tokens, blocks);
  p.spans = batch.spans.as<const int32_t>();
  p.row_sequence = batch.row_sequence.as<const int32_t>();
  p.rows = static_cast<int>(batch.rows);
  p.sequences = static_cast<int>(batch.sequences.size());
  p.kv_heads = static_cast<int>(kv_heads);
  p.group = static_cast<int>(out.shape[1] / kv_heads);
  p.by_group = Divisor(p.group);
  p.dim = static_cast<int>(out.shape[2]);
  p.window = static_cast<int>(std::min<int64_t>(spec.window, batch.max_context));
  p.scale = spec.scale * attention_rule::kLog2e;
  p.fp8 = spec.fp8;

  // A step of as many rows as sequences is a decode step, one row each: the split kernel has all.
  // Else sequences whose rows fit into one group of 16 are its, and others the chunk kernel's.
  const bool decode = p.rows <= p.sequences;
  p.few = decode ? 1 : std::max(1, kGroupRows / p.group);
  p.packs = (p.few * p.group + kGroupRows - 1) / kGroupRows;
  p.chunks = !decode || std::ranges::any_of(batch.sequences, [&](const ops::SequenceRows& rows) {
    return rows.rows > p.few;
  });
  p.one_split = batch.max_context <= kSplit;
  p.slots = static_cast<int>((std::max<int64_t>(batch.max_context, 1) + kSplit - 1) / kSplit);
  // A group of 16 sees window + few - 1 positions in a row, which begin anywhere.
  if (p.window > 0) p.slots = std::min(p.slots, (p.window + p.few + kSplit - 3) / kSplit + 1);
}

bool next_range(const KernelContext& context, RowParams& p) {
  p.first_sequence += p.range;
  if (p.first_sequence >= p.sequences) return false;
  p.range = std::min(p.sequences - p.first_sequence, 65535 / p.packs);
  if (p.slots == 1) return true;
  const int64_t most = (static_cast<int64_t>(context.workspace.bytes) - 512) /
                       (part_rows(p) * (4 * int64_t{p.dim} + 8));
  invariant(most > 0, "the workspace must hold one sequence's splits");
  p.range = static_cast<int>(std::min<int64_t>(p.range, most));
  size_t offset = 0;
  p.part_o = context.workspace.take<float>(offset, part_rows(p) * p.range * p.dim);
  p.part_ml = context.workspace.take<float2>(offset, part_rows(p) * p.range);
  return true;
}

void merge_splits(const KernelContext& context, const RowParams& p) {
  if (p.slots == 1) return;
  launch(context, merge_kernel,
         dim3(static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.few * p.group),
              static_cast<unsigned>(p.range)),
         dim3(kMergeThreads), 0, p);
}

}  // namespace octet::cuda
