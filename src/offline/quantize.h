// 16-bit checkpoint in, FP8 checkpoint out, one tensor in memory at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "numerics/policy.h"
#include "numerics/quantize.h"
#include "offline/calibrated_scales.h"
#include "offline/input_moments.h"

namespace octet::offline {

struct QuantizeOptions {
  std::string source;  // a directory in Hugging Face layout
  std::string out;     // made whole or not at all
  LinearFormat scheme;
  std::vector<PolicyRow> policy;  // of --policy FILE: above the defaults
  bool overwrite = false;
  bool allow_nonfinite = false;  // quantize weights that hold NaN or infinities
  int64_t shard_bytes = int64_t{5} << 30;
  // What enters the linears, seen on calibration data: rounding is error-compensated
  // (error_feedback.h). Null: every value becomes the nearest code. Linears whose input was seen on
  // fewer rows than a quarter of its width are rounded to the nearest, and told.
  const InputMoments* inputs = nullptr;
  double damping = 0.01;          // of the moments, relative to their mean diagonal
  bool search_scales = false;     // of weights, by least squared error: scale_search.h
  ThreadPool* threads = nullptr;  // with inputs: does the work
  // Gives the checkpoint scales of the KV cache, and of inputs where the scheme fixes them. Null:
  // the cache chooses its scales as it grows, and a scheme with fixed ones is refused.
  const Calibration* calibration = nullptr;
  ScaleChoice scales;
  // The data of `inputs`, to be recorded where `calibration` gives nothing; null: not known.
  OrderedJson rounded_on;
  // Written into config.json, for whoever opens it without flags of his own.
  model::RecordedArithmetic recorded;
};

struct QuantizedTensor {
  std::string module;
  QuantFormat format;
  QuantStats stats;
  double sqnr_db = 0;  // signal over quantization noise; infinite if nothing changed
  // Of the linear's output on the calibration data, relative to its energy: as it was rounded, and
  // with the nearest codes.
  std::optional<double> output_error, output_error_nearest;
};

// A tensor of the source that holds NaN or infinities.
struct BrokenTensor {
  std::string name;
  int64_t nan = 0, inf = 0;
  bool quantized = false;  // NaN stayed NaN, an infinity became +-max; else copied as it is
};

struct QuantizeReport {
  int64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  int64_t tensors = 0;                        // of the source
  std::vector<QuantizedTensor> quantized;     // in the order of the files
  QuantStats stats;                           // of all quantized tensors
  std::vector<BrokenTensor> broken;           // of all tensors
  std::vector<std::string> notices;
};

// Throws what quantize_checkpoint would say of its options, source and target before any work: for
// callers that have work of their own to do first.
void check_quantize(const QuantizeOptions& options);

// Bytes of all tensors of what quantize_checkpoint() would write: they follow from shapes and
// formats, and nothing is computed. Throws as it does.
int64_t quantized_bytes(const QuantizeOptions& options);

// Which linears become FP8, and in what format, is decided by what also decides when the checkpoint
// is loaded with --scheme: the family's own list of linears and the precision policy. All other
// tensors are copied as they are. Throws Error if the source is FP8 already, if the policy asks for
// two FP8 formats (a checkpoint has room for one) or for one that no schema can say, if `out`
// exists, and unless it is allowed, if a weight to quantize holds NaN or infinities: no code stands
// for an infinity. `progress(done, total)` counts bytes written; what it throws ends the work
// without a trace.
QuantizeReport quantize_checkpoint(const QuantizeOptions& options,
                                   const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace octet::offline
