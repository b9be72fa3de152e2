// When the device begins and ends each step, by events in the stream:
//
//   | copy | step n          | copies, idle | step n+1        |
//          begin           end             begin
//                             |--- gap ----|
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace octet::cuda {

class StepTimer {
 public:
  explicit StepTimer(cudaStream_t stream) : stream_(stream) {}
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  void begin();
  void end();

  // Microseconds of the steps since the last call, which have ended: of each step, and between each
  // and the one after.
  struct Times {
    std::vector<double> steps, gaps;
  };
  Times take();

 private:
  void mark();
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;  // begin, end, begin, end, ...; reused after take()
  size_t used_ = 0;
};

}  // namespace octet::cuda
