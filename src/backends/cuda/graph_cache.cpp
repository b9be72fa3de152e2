#include "backends/cuda/graph_cache.h"

#include <algorithm>

#include "backends/cuda/device.h"

namespace octet::cuda {

GraphCache::~GraphCache() {
  for (auto& [key, entry] : graphs_) {
    if (entry.exec) cudaGraphExecDestroy(entry.exec);
  }
}

void GraphCache::run(uint64_t key, cudaStream_t stream, FunctionRef<void()> body) {
  const auto [found, is_new] = graphs_.try_emplace(key);
  Entry& entry = found->second;
  entry.last_use = ++uses_;
  if (is_new) {
    if (graphs_.size() > most_) drop_oldest();
    body();
    return;
  }
  if (!entry.exec) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&entry.exec, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
  }
  check(cudaGraphLaunch(entry.exec, stream), "cudaGraphLaunch");
}

void GraphCache::drop_oldest() {
  const auto oldest =
      std::ranges::min_element(graphs_, {}, [](const auto& item) { return item.second.last_use; });
  // A graph that still runs is kept alive by the driver until it has ended.
  if (oldest->second.exec) cudaGraphExecDestroy(oldest->second.exec);
  graphs_.erase(oldest);
}

}  // namespace octet::cuda
