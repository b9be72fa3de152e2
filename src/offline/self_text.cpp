#include "offline/self_text.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "base/queue.h"
#include "engine/engine.h"

namespace octet::offline {
namespace {

constexpr int32_t kBatch = 32;
constexpr uint64_t kFirstToken = 1;  // the stream of random numbers that no sampled token takes

struct Event {
  size_t text = 0;
  engine::TokenEvent event;
};

engine::GenRequest request_for(const std::vector<int32_t>& prompt, const SelfTextOptions& options,
                               size_t index) {
  engine::GenRequest request;
  request.prompt = prompt;
  request.max_tokens = static_cast<int32_t>(options.window - 1);
  request.ignore_eos = true;
  request.sampling = {.temperature = options.temperature, .seed = options.seed + index};
  return request;
}

}  // namespace

std::vector<std::vector<int32_t>> write_own_text(
    const model::Model& model, ops::Backend& backend, const SelfTextOptions& options,
    const std::function<void(int64_t, int64_t)>& progress) {
  const auto count = static_cast<size_t>(options.samples);
  std::vector<std::vector<int32_t>> texts(count);
  for (size_t i = 0; i < count; ++i) {
    const auto any = static_cast<int32_t>(philox(options.seed, kFirstToken, i)[0] %
                                          static_cast<uint64_t>(model.config().vocab));
    texts[i] = {options.bos.value_or(any)};
  }

  Queue<Event> events(1 << 16);  // outlives the engine, whose thread fills it
  engine::Engine engine(model, backend,
                        {.max_model_len = options.window,
                         .max_num_seqs = std::min(kBatch, static_cast<int32_t>(count)),
                         .max_logprobs = 0,
                         .max_queued_requests = static_cast<int32_t>(count),
                         .enable_prefix_caching = false});
  // Whatever happens here, the engine's thread must not wait for room.
  const std::unique_ptr<Queue<Event>, void (*)(Queue<Event>*)> closer(
      &events, [](Queue<Event>* queue) { queue->close(); });
  for (size_t i = 0; i < count; ++i) {
    const auto sink = [&events, i](engine::TokenEvent event) {
      events.push({i, std::move(event)});
    };
    const engine::Submitted submitted = engine.submit(request_for(texts[i], options, i), sink);
    if (!submitted.unavailable.empty()) engine.rethrow_fault();
    invariant(submitted.accepted(), "the engine was made for these texts");
  }
  const int64_t total = static_cast<int64_t>(count) * (options.window - 1);
  int64_t done = 0;
  for (size_t open = count; open > 0;) {
    const std::optional<Event> next = events.pop();
    invariant(next.has_value(), "nobody closes the queue of events");
    if (!next->event.fault.empty()) engine.rethrow_fault();
    if (!next->event.error.empty()) {
      throw Error({.what = next->event.error, .where = "a text that the model writes itself"});
    }
    for (const engine::SampledToken& token : next->event.tokens) {
      texts[next->text].push_back(token.token);
      ++done;
    }
    if (progress) progress(done, total);
    if (next->event.finish) --open;
  }
  return texts;
}

}  // namespace octet::offline
