// Looks at what is written to the KV cache, as it is written: the scale in force, how much of the
// range is used, and how many values are saturated, zero or not finite. A sample, not a census: one
// block of one layer every few steps, layers in turn, so that it costs nothing that one could see.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "model/kv_store.h"
#include "sched/step_plan.h"

namespace octet::engine {

// Of one part of the cache (K, V, or MLA's latent) in neighbouring layers. Counts since the start.
struct KvNumbers {
  int32_t first_layer = 0, last_layer = 0;
  std::string part;
  uint64_t values = 0, saturated = 0, zeros = 0, not_finite = 0;
  double scale = 0;  // the largest in force in the newest sample of each layer
  double range_used =
      0;  // the largest |value| of that sample over the largest that its scale holds
};

class KvProbe {
 public:
  static constexpr int kSteps = 8;    // between two samples
  static constexpr int kGroups = 16;  // of layers, at most

  // Both outlive it.
  KvProbe(ops::Backend& backend, const model::KvStore& kv);

  // After a step, on the thread of the backend: now and then enqueues the copy of a block that the
  // step completed or used, and counts what the copy before it brought.
  void after(const sched::StepPlan& plan);

  // From any thread. Empty values where nothing was sampled yet.
  std::vector<KvNumbers> numbers() const;
  // Whether the cache is FP8: else nothing has a scale or saturates.
  bool is_fp8() const;

 private:
  struct Part {
    Tensor codes, scales;  // of one block; host copies
    DType type = DType::e4m3;
    int32_t layer = 0, index = 0;  // of the layer's parts
  };
  void enqueue(int32_t block);
  void count(const Part& part);

  ops::Backend& backend_;
  const model::KvStore& kv_;
  Buffer host_;
  std::vector<Part> copied_;  // on their way
  uint64_t point_ = 0;        // in the stream: they are there
  int64_t steps_ = 0;
  int32_t next_layer_ = 0;
  int32_t group_layers_ = 1;  // of one group

  struct Layer {
    double scale = 0, range_used = 0;
  };
  mutable std::mutex mutex_;  // of what follows; never held across work of the device
  std::vector<KvNumbers> groups_;
  std::vector<Layer> newest_;  // by layer and part
};

}  // namespace octet::engine
