// Which part of a model loses how much in low precision: one part at a time in FP8 while all else
// stays as it is stored, or the reverse. Nothing is written: a trial is the 16-bit checkpoint,
// loaded under a policy that quantizes one part of it.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/kv_store.h"
#include "model/model.h"

namespace octet::eval {

// What makes one part: a linear (the experts of a layer count as one of each kind), all linears of
// a layer, or those of one kind in all layers.
enum class PartBy : uint8_t { linear, layer, role };
PartBy parse_part_by(std::string_view text);  // throws Error

struct Part {
  enum class Kind : uint8_t { linear, cache, router, embedding, lm_head };
  Kind kind = Kind::linear;
  std::string name;       // "model.layers.3.mlp.experts.*.up_proj", "model.layers.3 KV cache"
  std::string pattern;    // linear, router: of its module names, as in a policy
  int64_t layer = -1;     // cache: of this layer, -1 is all of them
  int64_t linears = 0;    // that it has
  int64_t bytes = 0;      // as stored; of a cache, of one token
  int64_t bytes_low = 0;  // in the format that is tried, scales included
};

// What is tried on each part.
struct LowPrecision {
  LinearFormat linear;
  model::KvType cache = model::KvType::fp8_e4m3;
};

// The layer of a module, and what it is in there, the same for all experts: 3 and
// "mlp.experts.*.up_proj" of "model.layers.3.mlp.experts.7.up_proj"; -1 and all of it where it is
// in no layer.
struct ModulePlace {
  int64_t layer = -1;
  std::string role;
};
ModulePlace place_of(std::string_view module);

// Part::pattern of the part that a linear belongs to.
std::string pattern_of(const model::LinearUse& use, PartBy by);

// The linears of the FP8 data path and the KV cache; with `high_roles` also what stays high by
// default: routers, embedding and head. `model` is as stored, in 16 or 32 bits.
std::vector<Part> parts_of(const model::Model& model, PartBy by, const LowPrecision& low,
                           bool high_roles);

// How to load and run a model of which `low` are in low precision and all else is as stored.
struct Trial {
  std::vector<PolicyRow> policy;           // for model::LoadOptions
  std::vector<model::KvType> kv_by_layer;  // for SessionOptions
  bool embedding = false, head = false;    // are rounded: RoundedEnds
};
Trial trial_of(std::span<const Part* const> low, const LowPrecision& formats, int64_t layers);

// A checkpoint whose embedding or head has the values that a format leaves of it: neither has FP8
// kernels, and their cost is measured so. The values are rounded once more, to BF16.
std::shared_ptr<const model::WeightSource> rounded_ends(
    std::shared_ptr<const model::WeightSource> source, const model::ModelConfig& config,
    const QuantFormat& format, const Trial& trial);

}  // namespace octet::eval
