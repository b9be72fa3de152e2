// What a calibration saw: how the inputs of linears, and what goes into the KV cache, are
// distributed over a set of samples. One JSON file, from which scales are chosen later by any
// method; it does not depend on threads or ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "offline/delayed_scaling.h"
#include "offline/value_histogram.h"
#include "ops/op_types.h"

namespace octet::offline {

// Steps of delayed scaling that can be asked for: as many as Transformer Engine keeps by default.
inline constexpr int64_t kAmaxHistory = 1024;

// A tenth of the samples is held out: what the others say of the range is tried on it. The
// histogram has all of them.
struct Range {
  ValueHistogram values;
  float fitted = 0, held_out = 0;  // absmax of the samples of either kind
  // absmax of each of the last kAmaxHistory samples that held any of these values, oldest first.
  std::vector<float> amax;
  // Held-out values that a scale of the fitted range would clip.
  bool is_exceeded() const { return fitted > 0 && held_out > fitted; }
  // `is_new`: x is the first of its sample.
  void add(std::span<const float> x, bool is_held_out, bool is_new);
  // What both hold, seen in the same samples.
  void merge(const Range& other);
  friend bool operator==(const Range&, const Range&) = default;
};

// What enters linears that share an input.
struct InputRange {
  std::vector<std::string> modules;
  Range range;
  std::vector<float> channel_absmax;  // [width]
  friend bool operator==(const InputRange&, const InputRange&) = default;
};

// Channels whose largest magnitude is more than kOutlier times the median channel's, ascending.
inline constexpr float kOutlier = 8.0f;
std::vector<int64_t> outlier_channels(const InputRange& input);

// What one attention module writes: K and V of each KV head, K after RoPE, or the groups of 128
// values of an MLA latent.
struct CacheRange {
  std::vector<Range> k, v, latent;
  // Largest magnitude of each dimension: [heads * dim], or [width]. Empty in files of before.
  std::vector<float> k_channels, v_channels, latent_channels;
  friend bool operator==(const CacheRange&, const CacheRange&) = default;
};

struct Calibration {
  std::string engine;             // the version that made it
  std::string model, model_hash;  // its path, and model::identity_of it
  std::string data, data_hash;    // the file, or "model"; of the tokens that were seen
  int64_t window = 0;             // most tokens of a sample
  int64_t samples = 0, tokens = 0;
  int64_t samples_in_all = 0;  // more than `samples`: interrupted
  int64_t longest = 0;         // sample, in tokens
  OrderedJson positions;       // the model's: model::position_members; null where it is not known
  std::map<std::string, InputRange, std::less<>> inputs;  // by the first module
  std::map<std::string, CacheRange, std::less<>> caches;  // by attention module
  friend bool operator==(const Calibration&, const Calibration&) = default;

  // The input of a module, under whichever name it is stored; null if it was never seen.
  const InputRange* input_of(std::string_view module) const;
};

// What config.json keeps of it, as "calibration" of its "octet": model::RecordedCalibration.
// `measured` names what it gave: kv_cache, inputs, rounding.
OrderedJson record_of(const Calibration& calibration, const std::vector<std::string>& measured);

// Statistics for a reader, then what is needed to go on or to choose another method.
OrderedJson to_json(const Calibration& calibration);
// Throws Error naming the file and the place in it.
Calibration read_calibration(const std::filesystem::path& path);

// Adds what an ObservingBackend tells to a calibration.
class Calibrator {
 public:
  explicit Calibrator(Calibration& calibration) : calibration_(calibration) {}

  // Of what is added from now on.
  void begin_sample(bool held_out) {
    held_out_ = held_out;
    seen_.clear();
  }
  // x [rows, in] enters all of `ws`. Error that names the linear if x is not finite.
  void add_input(std::span<const ops::Linear* const> ws, const Tensor& x);
  // k, v [rows, heads, dim] of the module "model.layers.0.self_attn"; or a latent [rows, width].
  // Error that names the module if they are not finite.
  void add_cache(const std::string& attention, const Tensor& k, const Tensor& v);
  void add_latent(const std::string& attention, const Tensor& latent);

 private:
  void add_parts(std::vector<Range>& parts, std::vector<float>& channels, const Tensor& x,
                 int64_t part, const std::string& where);

  void add(Range& range, std::span<const float> x);

  Calibration& calibration_;
  bool held_out_ = false;
  std::set<const Range*> seen_;  // in this sample
};

// The scale by which what was seen becomes codes. `delayed` says how under RangeMethod::delayed;
// Error then for a range without a history, which files of earlier versions lack.
float scale_of(const Range& range, RangeMethod method, const DelayedScaling& delayed, Code code);

// What a user should know before trusting the ranges: too few samples, held-out samples beyond
// them, linears that saw nothing. One sentence each.
std::vector<std::string> warnings_of(const Calibration& calibration);

}  // namespace octet::offline
