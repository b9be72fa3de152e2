#include "backends/cuda/step_timer.h"

#include "backends/cuda/device.h"

namespace octet::cuda {

StepTimer::~StepTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void StepTimer::mark() {
  if (used_ == events_.size()) {
    events_.push_back(nullptr);
    check(cudaEventCreate(&events_.back()), "cudaEventCreate");
  }
  check(cudaEventRecord(events_[used_++], stream_), "cudaEventRecord");
}

void StepTimer::begin() {
  mark();
}

void StepTimer::end() {
  mark();
}

StepTimer::Times StepTimer::take() {
  Times times;
  for (size_t i = 1; i < used_; ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]), "cudaEventElapsedTime");
    (i % 2 == 1 ? times.steps : times.gaps).push_back(double{ms} * 1e3);
  }
  used_ = 0;
  return times;
}

}  // namespace octet::cuda
