// CUDA graphs of whole steps, by key.
//
// A key's first step runs as it is: it loads kernels, makes plans and tables, which a capture must
// not. Its second is captured and launched; from then on it is one launch. Keys that have not come
// for long are dropped when there are too many.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <unordered_map>

#include "base/function_ref.h"

namespace octet::cuda {

class GraphCache {
 public:
  explicit GraphCache(size_t most = 256) : most_(most) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Enqueues `body`, or what it enqueued when `key` came before. If body throws during a capture,
  // the capture is ended and the exception passed on.
  void run(uint64_t key, cudaStream_t stream, FunctionRef<void()> body);

  size_t size() const { return graphs_.size(); }

 private:
  struct Entry {
    cudaGraphExec_t exec = nullptr;  // null until the second run
    uint64_t last_use = 0;
  };
  void drop_oldest();

  size_t most_;
  uint64_t uses_ = 0;
  std::unordered_map<uint64_t, Entry> graphs_;
};

}  // namespace octet::cuda
