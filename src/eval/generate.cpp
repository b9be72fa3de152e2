#include "eval/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/queue.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace octet::eval {
namespace {

// An answer as it grows.
struct Growing {
  Growing(const text::Tokenizer& tokenizer, const Job& job)
      : detokenizer(tokenizer), stop(job.stop) {}
  uint64_t id = 0;
  Answer answer;
  bool stopped = false;  // by a stop string
  text::Detokenizer detokenizer;
  text::StopMatcher stop;

  void push(engine::Engine& engine, const engine::TokenEvent& event) {
    for (const engine::SampledToken& token : event.tokens) {
      if (stopped || event.stop_token == token.token) return;
      answer.tokens.push_back(token.token);
      const auto found = stop.push(detokenizer.push(token.token));
      answer.text += found.text;
      if (!found.stopped) continue;
      stopped = true;
      answer.tokens.resize(static_cast<size_t>(found.kept_tokens));
      engine.finish_at(id, found.kept_tokens);
    }
  }

  Answer finish(sched::Finish reason) {
    if (!stopped) {
      const auto rest = stop.flush(detokenizer.flush());
      answer.text += rest.text;
      stopped = rest.stopped;
    }
    answer.complete = stopped || reason == sched::Finish::stop;
    return std::move(answer);
  }
};

struct Event {
  size_t job = 0;
  engine::TokenEvent event;
};

engine::EngineOptions options_of(const Subject& subject, size_t jobs,
                                 const GenerateLimits& limits) {
  engine::EngineOptions options;
  options.max_model_len = limits.max_model_len;
  options.max_num_seqs = static_cast<int32_t>(
      std::min<size_t>(static_cast<size_t>(limits.sequences), std::max<size_t>(jobs, 1)));
  options.max_queued_requests = options.max_num_seqs;
  options.kv_type = subject.kv_type;
  options.unit_kv_scale = subject.unit_kv_scale;
  options.memory_utilization = limits.memory_utilization;
  return options;
}

}  // namespace

int64_t longest(std::span<const Job> jobs) {
  int64_t most = 0;
  for (const Job& job : jobs) {
    most = std::max(most, static_cast<int64_t>(job.prompt.size()) + job.max_tokens);
  }
  return most;
}

void generate(const Subject& subject, const text::Tokenizer& tokenizer, std::span<const Job> jobs,
              const GenerateLimits& limits, const TakeAnswer& take) {
  if (jobs.empty()) return;
  Queue<Event> events(1 << 16);  // outlives the engine, whose thread fills it
  engine::Engine engine(subject.model, subject.backend, options_of(subject, jobs.size(), limits));
  // Whatever happens here, the engine's thread must not wait for room.
  const std::unique_ptr<Queue<Event>, void (*)(Queue<Event>*)> closer(
      &events, [](Queue<Event>* queue) { queue->close(); });
  std::vector<std::unique_ptr<Growing>> growing(jobs.size());
  size_t next = 0, open = 0;
  const auto submit = [&] {
    const size_t index = next++;
    const Job& job = jobs[index];
    growing[index] = std::make_unique<Growing>(tokenizer, job);
    engine::GenRequest request;
    request.prompt = job.prompt;
    request.max_tokens = job.max_tokens;
    request.sampling = job.sampling;
    const engine::Submitted submitted =
        engine.submit(std::move(request), [&events, index](engine::TokenEvent event) {
          events.push({index, std::move(event)});
        });
    if (!submitted.unavailable.empty()) engine.rethrow_fault();
    if (!submitted.accepted()) {
      throw Error({.what = submitted.admission.message(),
                   .where = fmt::format("prompt {}", index),
                   .fix = "shorten the prompts, or raise --max-model-len"});
    }
    growing[index]->id = submitted.id;
    ++open;
  };
  const auto at_once = static_cast<size_t>(limits.sequences);
  while (next < jobs.size() || open > 0) {
    while (next < jobs.size() && open < at_once) submit();
    std::optional<Event> got = events.pop();
    invariant(got.has_value(), "nobody closes the queue of events");
    if (!got->event.fault.empty()) engine.rethrow_fault();
    if (!got->event.error.empty()) throw Error({.what = got->event.error});
    Growing& one = *growing[got->job];
    one.push(engine, got->event);
    if (!got->event.finish) continue;
    --open;
    take(got->job, one.finish(*got->event.finish));
    growing[got->job].reset();
  }
}

}  // namespace octet::eval
