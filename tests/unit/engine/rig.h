// A tiny model, and a backend that can be held, slowed down and broken, for tests of the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/forwarding_backend.h"
#include "engine/engine.h"
#include "model/checkpoint.h"

namespace octet::engine {

// The CPU backend with a gate in front of every step's first operation.
class RiggedBackend final : public probe::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // The n-th linear from now on throws Fault.
  void break_after(int linears) { until_fault_ = linears; }
  // The embedding of this token is NaN from now on.
  void poison_token(int32_t id) { poisoned_ = id; }
  // A row of what this linear gives is NaN from now on.
  void poison_linear(std::string name, int64_t row) {
    poisoned_linear_ = std::move(name);
    poisoned_row_ = row;
  }
  // Steps wait at the gate, after so many more that pass.
  void hold(int passing = 0) {
    const std::scoped_lock lock(mutex_);
    open_ = false;
    passing_ = passing;
  }
  void let_go() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Until `count` steps have come to the gate since construction.
  bool wait_for_steps(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return steps_ >= count; });
  }
  int steps() {
    const std::scoped_lock lock(mutex_);
    return steps_;
  }

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override {
    std::unique_lock lock(mutex_);
    ++steps_;
    changed_.notify_all();
    if (!open_ && passing_ > 0) {
      --passing_;
    } else {
      changed_.wait(lock, [&] { return open_; });
    }
    lock.unlock();
    ForwardingBackend::embed(table, tokens, out);
    for (int64_t i = 0; i < tokens.count(); ++i) {
      if (tokens.as<int32_t>()[i] != poisoned_) continue;
      const Tensor row = out.slice(i, 1);
      std::memset(row.data, 0xFF, static_cast<size_t>(row.bytes()));  // NaN in every type
    }
  }
  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override {
    if (until_fault_ > 0 && --until_fault_ == 0) throw Fault("the device caught fire");
    ForwardingBackend::linear(x, w, out);
    poison(w, out);
  }
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override {
    if (until_fault_ > 0 && --until_fault_ == 0) throw Fault("the device caught fire");
    ForwardingBackend::linear_group(x, ws, outs);
    for (size_t i = 0; i < ws.size(); ++i) poison(*ws[i], outs[i]);
  }

 private:
  void poison(const ops::Linear& w, const Tensor& out) const {
    if (w.name != poisoned_linear_ || out.rows() <= poisoned_row_) return;
    const Tensor row = out.slice(poisoned_row_, 1);
    std::memset(row.data, 0xFF, static_cast<size_t>(row.bytes()));
  }

  std::atomic<int> until_fault_{0};
  std::atomic<int32_t> poisoned_{-1};
  std::string poisoned_linear_;  // set before the engine starts
  int64_t poisoned_row_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int passing_ = 0;
  int steps_ = 0;
};

struct Rig {
  explicit Rig(const std::string& name = "llama_mha")
      : folder(std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + name),
        cpu({.threads = 1}),
        backend(cpu),
        model(model::load_model(model::read_config(folder),
                                std::make_shared<model::Checkpoint>(folder), backend,
                                {.compute = model::Compute::fp32})) {}

  std::string folder;
  cpu::CpuBackend cpu;
  RiggedBackend backend;
  std::unique_ptr<model::Model> model;
};

// All events of a request, once it has ended.
struct Ended {
  std::vector<int32_t> tokens;
  TokenEvent last;
  int ends = 0;  // events with finish or fault
};

// `first` was taken from the collector already.
inline Ended drain(Collector& collector, std::optional<TokenEvent> first = std::nullopt) {
  Ended all;
  for (std::optional<TokenEvent> event = std::move(first);
       event || (event = collector.next(std::chrono::seconds(60))); event.reset()) {
    for (const SampledToken& token : event->tokens) all.tokens.push_back(token.token);
    if (!event->finish && event->fault.empty()) continue;
    ++all.ends;
    all.last = std::move(*event);
    // Nothing may follow; what would is here already, or comes with the next step.
    while (std::optional<TokenEvent> more = collector.next(std::chrono::milliseconds(0))) {
      ++all.ends;
    }
    break;
  }
  return all;
}

// Until something on another thread holds; false if it does not within ten seconds, far more than a
// sanitizer on a busy machine takes.
template <class F>
bool soon(F holds) {
  for (int i = 0; i < 2000 && !holds(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return holds();
}

inline GenRequest greedy(std::vector<int32_t> prompt, std::optional<int32_t> max_tokens) {
  GenRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

}  // namespace octet::engine
