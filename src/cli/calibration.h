// The samples on which a 16-bit model is observed, and the run that shows them to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/probe/observe.h"
#include "base/thread_pool.h"
#include "cli/open_model.h"
#include "offline/calibration.h"
#include "offline/input_moments.h"

namespace octet::cli {

// In place of a file: the model writes its samples itself (offline/self_text.h). A file of this
// name is "./model".
inline constexpr std::string_view kOwnText = "model";

struct CalibrationText {
  // A text, which is cut into windows; FILE.jsonl, of whose lines each is a sample: {"text": ..} or
  // {"messages": [..]}; or kOwnText.
  std::string source;
  int64_t samples = 64;  // at most
  int64_t window = 512;  // most tokens of one, BOS included
};

// What is told while a model computes samples; each may be empty.
struct CalibrationObserver {
  std::function<void(std::span<const ops::Linear* const> ws, const Tensor& x)> input;
  // k and v [rows, heads, dim] of a layer, K after RoPE; or a latent [rows, width] and nothing.
  std::function<void(int64_t layer, const Tensor& k, const Tensor& v)> cache;
  // Around each sample.
  std::function<void(int64_t sample)> before, after;
};

// A model that computes samples in BF16 on the CPU.
class CalibrationRun {
 public:
  // Opens the model and reads the samples of a file. Of a .jsonl, lines that cannot be used are
  // counted and named in a warning. Error if nothing is left, or if a text does not fill one
  // window. To be made before there are threads: a chat template is read in a process of its own.
  // Of `model` that counts which says what is computed, such as its positions; how, is BF16.
  CalibrationRun(const ModelOptions& model, CalibrationText text);

  // Loads the weights; has the model write its samples, if it is to.
  void load(int threads);
  // From `first` on, each by itself. Stops between two where a signal has come (Interrupted).
  void run(const CalibrationObserver& observer, int64_t first = 0);

  const OpenModel& open() const { return open_; }
  const std::vector<std::vector<int32_t>>& samples() const { return samples_; }
  int64_t tokens() const;
  // Of all samples, without any range and without the names of model and text.
  offline::Calibration summary() const;
  const ops::BackendInfo& backend_info() const { return backend_->info(); }

 private:
  CalibrationText text_;
  OpenModel open_;
  OrderedJson positions_;
  std::vector<std::vector<int32_t>> samples_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<probe::ObservingBackend> observing_;
  CalibrationObserver observer_;  // of the run that is going on
};

// What CalibrationObserver::cache tells the calibrator, which must stay.
std::function<void(int64_t layer, const Tensor& k, const Tensor& v)> cache_into(
    offline::Calibrator& calibrator);

// The moments of the inputs of all linears of a run that is not loaded yet. Error if an activation
// is NaN, or if the moments do not fit into memory.
// `also` is told of the same inputs.
offline::InputMoments observe_inputs(CalibrationRun& run, ThreadPool& threads,
                                     const probe::ObservingBackend::Observer& also = {});

}  // namespace octet::cli
