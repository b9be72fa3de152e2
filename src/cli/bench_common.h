// What the tasks of `octet bench` share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cli/batch_run.h"
#include "cli/device_probe.h"
#include "cli/open_model.h"
#include "cli/output.h"

namespace octet::cli {

// Middle, least and most of repeated measurements; zeros if there are none.
struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values);
OrderedJson json_of(const Spread& spread);
// "  decode     103.1 tokens/s  (99.0 to 104.2)\n"
std::string line_of(std::string_view name, const Spread& spread, std::string_view unit);

double seconds_of(FunctionRef<void()> work);

// Weight bytes that one decode step of `batch` tokens reads. Tokens share what they read; which
// experts they want is taken as independent, so of e experts with a share s each 1 - (1 - s)^batch
// is read.
double step_bytes(const model::Model& model, int64_t batch);
// FLOP of the linears that one prompt token passes, without the head, which only the last one
// needs, and without attention.
double prompt_flop(const model::Model& model);
// The same of a decoded token, whose logits the head computes.
double decode_flop(const model::Model& model);

// `count` token ids of the vocabulary, always the same.
std::vector<int32_t> random_prompt(const model::ModelConfig& config, int64_t count);

// Error if prompt and output are longer than the model allows.
void check_length(const OpenModel& open, int64_t length, int64_t warm_up);

// The probe of the device that `backend` is.
std::unique_ptr<DeviceProbe> make_probe(const BackendOptions& options, ops::Backend& backend,
                                        int64_t read_mib);

// Decode steps before anything is measured: a graph runs plainly once, then is captured, then
// replayed.
inline int64_t warm_up_steps(const BackendOptions& options) {
  return options.on_cpu() ? 0 : 4;
}

// What a run takes of the device, by arithmetic and by the driver's count (0 = not known).
OrderedJson memory_json(const engine::Ledger& ledger, int64_t used_bytes);

}  // namespace octet::cli
