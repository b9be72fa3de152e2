// The arguments of the operations: plain structs of tensors and numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "numerics/policy.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace octet::ops {

// A matrix of activations [rows, cols] in one or both of its forms. An op that produces one writes
// the forms that are present; an op that consumes one takes the form that it needs. `plain` is f32
// or bf16.
struct Activation {
  Tensor plain;
  QuantTensor quant;

  Activation() = default;
  Activation(Tensor t) : plain(t) {}  // NOLINT(google-explicit-constructor): a tensor is one form
  Activation(QuantTensor q) : quant(q) {}  // NOLINT(google-explicit-constructor)
  Activation(Tensor t, QuantTensor q) : plain(t), quant(q) {}
  int64_t rows() const { return plain ? plain.rows() : quant.codes.rows(); }
  int64_t cols() const { return plain ? plain.cols() : quant.codes.cols(); }
};

// y = x · Wᵀ (+ bias). The weight is [out, in], in 16/32-bit (`plain`) or quantized; exactly one of
// the two is present. If `input` is set, x is quantized to that format before the product.
struct Linear {
  std::string name;  // module name in the checkpoint: "model.layers.3.mlp.down_proj"
  Role role = Role::attn_in;
  int64_t out = 0, in = 0;
  Tensor plain;       // f32, bf16 or f16 [out, in]
  QuantTensor quant;  // codes [out, in], scales as its format says
  Tensor bias;        // f32 or bf16 [out], or absent
  std::optional<QuantFormat> input;
  InputScale when = InputScale::dynamic;
  Tensor input_scale;  // f32 [1] when `when` is calibrated

  explicit operator bool() const { return static_cast<bool>(plain) || static_cast<bool>(quant); }
  // Bytes of weight and scales that one use of this linear reads.
  int64_t bytes() const;
};

struct NormWeight {
  Tensor weight;  // [dim], f32 or bf16
  float eps = 1e-6f;
};

// The residual stream [T, hidden] of a decoder, and the memory that its ops use for it.
struct ResidualStream {
  Tensor sum;    // of what was added until now
  Tensor delta;  // to be added before the next norm; absent where there is nothing
  Tensor spare;  // memory for the sum of the two, where they are not summed in place
  Tensor room;   // memory for the next delta
  // Memory for the parts of the next norm, absent where nobody may leave them: f32
  // [T, hidden / kMomentColumns, 2], the sum of squares of as many columns of `sum`, and the
  // absmax of their products with the norm's weight. They are there if `measured` is that weight.
  Tensor moments;
  const void* measured = nullptr;

  // Memory in `arena` for `rows` rows of `hidden` columns of `type`, all but delta.
  static ResidualStream in(Arena& arena, DType type, int64_t rows, int64_t hidden);
};
inline constexpr int64_t kMomentColumns = 16;
inline constexpr int64_t kMostMomentRows = 4;  // steps of more rows have no moments

// cos and sin of every position, built in float64 and rounded once (model/rope.h).
struct RopeTable {
  Tensor cos, sin;           // f32 [positions, dim / 2]
  bool interleaved = false;  // pairs (2j, 2j+1) as DeepSeek stores them; else (j, j + dim/2)
};

// One sequence's rows within a step: rows [first_row, first_row + rows) hold its tokens at
// positions [first_position, first_position + rows).
struct SequenceRows {
  int64_t first_row = 0, rows = 0, first_position = 0;
  int64_t context() const { return first_position + rows; }  // tokens in the cache after the step
};

// What a step computes. The host knows the lengths, since the scheduler chose them, and so may size
// launches by them; the ids live on the device. A step that is captured once and replayed for other
// batches of its size reads lengths on the device alone: there `sequences` is only a bound.
struct Batch {
  std::vector<SequenceRows> sequences;
  int64_t rows = 0;
  int64_t max_context = 0;  // no sequence has more tokens in the cache after this step
  Tensor tokens;            // i32 [rows]
  Tensor positions;         // i32 [rows]
  Tensor spans;             // i32 [sequences, 3]: first_row, rows, first_position of each sequence
  Tensor row_sequence;  // i32 [rows]: the sequence of each row; -1 = padding, which nobody reads
  Tensor block_table;   // i32 [sequences, max_blocks]; entry b of a row holds positions
                        // [b * block_tokens, (b + 1) * block_tokens); unused entries are -1
  Tensor logits_rows;   // i32 [n]: the rows whose logits are wanted
};

// How attention is computed.
struct AttentionSpec {
  float scale = 1.0f;  // multiplies q·k (with YaRN's mscale² folded in)
  bool fp8 = false;    // quantize Q per token and head, and P (times 256), to E4M3
  int64_t window = 0;  // sliding window in tokens, the query included; 0 = none
};

// The router of a mixture of experts (models-numerics A.7; DeepSeek-V3 report, section 2.1.2).
struct RouterSpec {
  enum class Scoring : uint8_t { softmax, sigmoid };
  enum class Method : uint8_t {
    greedy,                // top k of the scores
    group_limited_greedy,  // groups by their best score, then top k (DeepSeek-V2)
    noaux_tc,              // scores + bias; groups by their two best; weights without bias (V3)
  };
  Scoring scoring = Scoring::softmax;
  Method method = Method::greedy;
  int experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool normalize = false;  // divide the k weights by their sum
  float scaling = 1.0f;
};

// Which experts each token goes to. Ties go to the lower expert index.
struct Routing {
  Tensor experts;  // i32 [rows, top_k], in descending order of the score that chose them
  Tensor weights;  // f32 [rows, top_k]
};

// silu(x·Wgᵀ) ⊙ (x·Wuᵀ) · Wdᵀ: a dense MLP or one expert.
struct GatedMlp {
  Linear gate, up, down;
};
// Memory for what lies between its parts, for T rows of the input's norm.
struct MlpRoom {
  Activation normed;  // [T, hidden]
  Tensor gate, up;    // [T, intermediate]
  Activation hidden;  // [T, intermediate]: silu(gate) ⊙ up, as down wants it
};

// How one row of logits becomes a token. Ops read it on the device, as these bytes.
struct SampleRow {
  float temperature = 0.0f;  // below 1e-5: greedy, ties to the lowest id
  int32_t top_k = 0;         // 0 = off; ties with the k-th are kept
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;     // with the position, the whole state of the random numbers
  int64_t position = 0;  // of the token that is sampled
  int32_t forced = -1;   // not -1: this token, which is scored, not drawn
  int32_t unused = 0;
};
static_assert(sizeof(SampleRow) == 40 && std::is_trivially_copyable_v<SampleRow>);

// What changes one logit before a token is chosen, in this order (models-numerics F.1, F.2):
//   x += bias;   x = x > 0 ? x / repetition : x * repetition;   x -= subtract
struct LogitEdit {
  int32_t row = 0, token = 0;
  float bias = 0.0f;  // may be -inf
  float repetition = 1.0f;
  float subtract = 0.0f;  // frequency penalty times count, and presence penalty
};
static_assert(sizeof(LogitEdit) == 20 && std::is_trivially_copyable_v<LogitEdit>);

// What is edited and masked in the logits of a step. Each of them may be absent.
struct LogitEdits {
  Tensor edits;      // u8 [m, sizeof(LogitEdit)]: ascending rows, a token at most once in each
  Tensor masks;      // i32 [k, ceil(vocab / 32)]: bit t % 32 of word t / 32: token t is allowed
  Tensor mask_rows;  // i32 [n]: the mask of each row of logits; -1 = all tokens are allowed
};

// What sampling writes; `top_*` may be absent. Log-probabilities are of the raw logits, before
// edits, masks, temperature and filters.
struct SampleResult {
  Tensor tokens;        // i32 [n]
  Tensor logprobs;      // f32 [n], of the sampled token
  Tensor ranks;         // i32 [n], entries with a logprob >= the token's own
  Tensor top_tokens;    // i32 [n, k], best first, ties to the lowest id
  Tensor top_logprobs;  // f32 [n, k]
};

}  // namespace octet::ops
