// What may be wrong with a quantized checkpoint beyond what the loader refuses: each finding says
// what was seen, where, and what to do about it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/model.h"
#include "model/recorded_calibration.h"
#include "offline/scan.h"

namespace octet::offline {

struct ScannedTensor {
  std::string name;
  Tensor tensor;
  std::optional<TensorScan> scan;  // absent: not read
};

enum class Severity : uint8_t {
  note,   // costs quality or speed, or is odd
  wrong,  // what is served would be wrong
};
std::string_view name_of(Severity severity);

struct Finding {
  Severity severity = Severity::note;
  std::string_view check;  // "ignore_list", "scales", ...: one word a kind, for programs
  std::string where;       // a tensor or module, the first of several
  std::string what, fix;   // one sentence each
};

// "X.weight_scale", "X.input_scale", "self_attn.k_scale" and the like.
bool is_scale(std::string_view name);

// check          severity  when
// nonfinite      wrong     NaN or infinities in any tensor
// magnitude      note      a value beyond 10^6 in a tensor that is not quantized; a norm of zeros
// layers         wrong     tensors of layers that num_hidden_layers does not count
// scale_range    wrong     a scale of weights, inputs or the KV cache below FP32's normal numbers,
//                          or so large that 448 times it is infinite; weights beyond 10^4; most
//                          linears without a weight of 10^-9 or more
//                note      some without
// scale_ones     note      every scale of weights, or of inputs, is 1, or each of one module: a
//                          cast, no quantization; inputs that were never measured
// scale_apart    note      a module's scales, or a layer's of K or V, are 100 times those of other
//                          layers, or less than a hundredth of them
// scale_loose    note      a linear's codes use an eighth of their range, or less
// merged_shards  note      one of q, k, v or gate, up does so, and has the same scale as the others
// fused_scales   note      q, k, v or gate, up with one scale each that are 8 or more times apart:
//                          engines that fuse them to the largest lose up to that factor
// input_scale    wrong     a calibrated input scale that is missing, or that no activation fits:
// its
//                          range ends below 10^-3 or above 10^6
//                note      linears that share an input have unlike input scales
// kv_scale       wrong     a KV scale that no key or value fits, by the same ends
// saturated      note      more than 1 in 1000 codes of a weight are the largest, beyond those that
//                          every cell has, and more than of each near it: its scales were too small
// ignore_list    wrong     a router in 8 bits: small errors change which experts are chosen
//                note      the head in 8 bits: its error goes straight into the logits
// context        note      the tokenizer's model_max_length is less than max_position_embeddings
// `max_length` is the tokenizer's, if it says one. Of many findings that differ in their place
// alone, three, the last of which says how many more there are; all of those that are not finite.
std::vector<Finding> diagnose(const model::ModelConfig& config, const model::Model& model,
                              std::span<const ScannedTensor> tensors,
                              std::optional<int64_t> max_length);

// How a checkpoint is served, as far as its calibration has a say in it.
struct ServedAs {
  model::RopeConfig rope;   // with all overrides; of its own length
  int64_t length = 0;       // the longest sequence, in tokens
  bool fp8_inputs = false;  // linears quantize their inputs
  bool e4m3_cache = false;  // stored scales of the KV cache hold
};

// What config.json records of its calibration, against what is served.
//
// check               severity  when
// calibration_length  note      fixed scales are in use, and sequences may be longer than any
//                               sample
// calibration_rope    note      positions turn otherwise than on the calibration data
std::vector<Finding> diagnose_calibration(const model::RecordedCalibration& calibration,
                                          const ServedAs& as);

// twin_rope           wrong     positions turn otherwise than those of the 16-bit checkpoint that
//                               this one was made from; both as config.json has them
std::vector<Finding> diagnose_twin(const model::ModelConfig& checkpoint,
                                   const model::ModelConfig& twin);

}  // namespace octet::offline
