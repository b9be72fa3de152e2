// The engine: one thread that plans, launches, waits and delivers, and a thread-safe front.
//
//   submit() ─▶ commands ─▶ ┌ plan ─▶ launch ─▶ wait ─▶ apply ┐ ─▶ sink(TokenEvent)
//   cancel() ─▶             └────────── engine thread ────────┘
//
// Results arrive through each request's sink, on the engine thread: a sink hands the event on and
// returns at once.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/queue.h"
#include "engine/capacity.h"
#include "engine/constraint.h"
#include "engine/event_recorder.h"
#include "engine/histogram.h"
#include "engine/kv_probe.h"
#include "engine/runner.h"
#include "sched/scheduler.h"
#include "tensor/populate.h"

namespace octet::engine {

struct EngineOptions {
  int64_t max_model_len = 0;  // 0 = the model's own limit
  int32_t max_num_seqs = 32;
  int32_t max_num_batched_tokens = 512;
  int32_t max_chunk = 0;  // most tokens of one prompt in one step; 0 = the budget
  int32_t block_tokens = 16;
  int64_t kv_cache_bytes = 0;        // 0 = as much as max_num_seqs full sequences need, but at
                                     // most what kv_budget() allows (capacity.h)
  double memory_utilization = 0.90;  // of a GPU's memory, by all that runs on it
  int32_t max_logprobs = 20;
  int32_t max_queued_requests = 1024;  // beyond: refused as overloaded
  bool enable_prefix_caching = true;
  model::KvType kv_type = model::KvType::automatic;
  bool unit_kv_scale = false;  // MLA: FP8 latent without scales
  sched::Policy policy = sched::Policy::fcfs;
  int32_t max_scored_tokens = 128;  // prompt tokens scored in one step: rows of logits beside those
                                    // of max_num_seqs
  // Host memory of the KV cache and of activations is made resident in the background, so that the
  // process does not grow as it is used. Where the system cannot, it grows to the same.
  bool populate_memory = false;
  std::string record_events;  // a file for the scheduler's events; empty = none
  int64_t record_events_bytes = 256 << 20;
  // For tests: the scheduler's invariants are checked after every step (debug builds always do it);
  // and every byte of a KV block that nobody uses is overwritten.
  bool check_every_step = false;
  std::optional<uint8_t> poison_free_blocks;
};

struct GenRequest {
  std::vector<int32_t> prompt;
  std::optional<int32_t> max_tokens;  // unset = as many as fit
  int32_t min_tokens = 0;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  Sampling sampling;
  std::string salt;                 // prefixes are shared only between equal salts
  int32_t priority = 0;             // lower = earlier, under the policy `priority`
  std::optional<double> timeout_s;  // from submit() on; then it ends as Finish::timeout
  int32_t prompt_logprobs = -1;     // best tokens to report for each prompt token; -1 = none
  std::shared_ptr<TokenConstraint> constraint;  // this request's own
};

// Seconds of the life of a request: waiting, until the first token, until the last one.
struct Timing {
  double queue_s = 0, prefill_s = 0, decode_s = 0, total_s = 0;
};

// What a request's sink receives. Exactly one event carries `finish` or `fault`, the last: also
// when the engine fails or is stopped, in whatever phase the request is.
struct TokenEvent {
  std::vector<SampledToken> prompt;  // tokens 1.. of the prompt, scored; before any output token
  std::vector<SampledToken> tokens;
  std::optional<sched::Finish> finish;
  std::optional<int32_t> stop_token;  // that ended it; counted in usage, its text is not shown
  int32_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  std::string fault;      // the engine failed; the stream ends here
  std::string error;      // why, if this request alone could not go on: with Finish::error
  bool of_model = false;  // then: the model computed NaN or infinite logits for it
  Timing timing;          // of the last event
};
// Called on the engine thread: takes the event away, does not wait for anything, does not throw.
using EventSink = std::function<void(TokenEvent)>;

// Unless accepted() nothing was queued, and the sink is never called.
struct Submitted {
  sched::Admission admission;  // can it ever be served?
  bool overloaded = false;     // too many requests are waiting: try again later
  std::string unavailable;     // not empty: the engine failed (why) or was stopped; no use trying
  uint64_t id = 0;
  bool accepted() const { return admission.ok() && !overloaded && unavailable.empty(); }
};

// What a monitor wants to know; never waits for the engine thread.
struct EngineStats {
  sched::Stats scheduler;
  double seconds_since_step = 0;  // age of the last finished step while work is pending; else 0
  std::string fault;              // not empty: the engine is dead
  // Of the engine's thread, while it had work; and of these, those in which it computed, or waited
  // for a device that did.
  double busy_seconds = 0, step_seconds = 0;
};

// Why one request alone cannot go on; empty where none has to end for it.
struct Trouble {
  std::string why;
  bool of_model = false;
};

class Engine {
 public:
  // Sizes and allocates everything; throws Error if it does not fit. `model` and `backend` outlive
  // the engine, and nobody else uses the backend.
  Engine(const model::Model& model, ops::Backend& backend, const EngineOptions& options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // From any thread; none of these ever waits for the engine's thread.
  Submitted submit(GenRequest request, EventSink sink);
  // The request ends as cancelled, soon. Unknown or finished ids are ignored.
  void cancel(uint64_t id);
  // The request ends after its first `output_tokens` tokens with Finish::stop: a stop string was
  // found in its text.
  void finish_at(uint64_t id, int32_t output_tokens);

  // Ends everything: requests that wait or run end as cancelled, and the thread is joined, at the
  // end of the step that it computes. No sink is called, or alive, once it has returned. Not from a
  // sink. Stopping twice is no harm.
  void stop();

  EngineStats stats() const;
  // Requests that were submitted and have not ended, as of now; stats() is as of the last step.
  int32_t pending() const {
    const std::scoped_lock lock(stats_mutex_);
    return pending_;
  }
  // Throws what ended the engine, if anything did: for callers that can tell an Error of the model
  // from a Fault of ours.
  void rethrow_fault() const;
  const Ledger& ledger() const { return ledger_; }
  // The most requests that run and wait together: what asks for more at once can never be accepted.
  int64_t max_requests() const {
    return int64_t{options_.max_queued_requests} + options_.max_num_seqs;
  }
  int64_t max_model_len() const { return scheduler_config_.max_model_len; }
  const sched::Config& scheduling() const { return scheduler_config_; }
  // What is written to the KV cache; never waits for the engine's thread.
  std::vector<KvNumbers> kv_numbers() const { return kv_probe_->numbers(); }
  // Tokens that each step computed.
  const Histogram& step_tokens() const { return step_tokens_; }
  DType kv_type() const { return kv_->layout().layers.front().type; }
  int32_t max_logprobs() const { return options_.max_logprobs; }
  const model::Model& model() const { return model_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Command {
    enum class Kind : uint8_t { submit, cancel, finish_at } kind = Kind::cancel;
    uint64_t id = 0;
    int32_t output_tokens = 0;
    Time submitted;
    GenRequest request;
    EventSink sink;
  };
  struct Live {
    Sampling sampling;
    std::unique_ptr<TokenRules> rules;  // only if it has any
    int32_t prompt_logprobs = -1;
    EventSink sink;
    Time submitted;
    std::optional<Time> deadline, started, first_token;
  };

  void loop();
  bool take_commands();
  void execute(Command& command);
  void start(Command& command);
  void expire();
  void step();
  void launch();
  std::string reason_of(uint64_t id, const char* otherwise) const;
  void tell_of_model(const Error& error);
  void deliver(const sched::Emission& emission, StepOutput* output, Trouble trouble = {});
  // Ends a request after its first output_tokens tokens.
  void end(uint64_t id, int32_t output_tokens, sched::Finish reason, Trouble trouble = {});
  void end_all(const TokenEvent& last);
  void publish();

  const model::Model& model_;
  ops::Backend& backend_;
  EngineOptions options_;
  sched::Config scheduler_config_;
  Ledger ledger_;
  std::unique_ptr<model::KvStore> kv_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<EventRecorder> recorder_;
  std::unique_ptr<KvProbe> kv_probe_;
  std::unique_ptr<Populator> populator_;  // of the memory of kv_ and runner_
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::deque<sched::StepPlan> planned_;
  Histogram step_tokens_;
  std::unordered_map<uint64_t, Live> live_;
  std::set<std::pair<Time, uint64_t>> deadlines_;  // of live requests
  Time step_end_;                                  // of the last step
  Clock::duration busy_{}, in_steps_{};
  // What the log says of a model that computes NaN: at most a line in this time.
  static constexpr std::chrono::seconds kModelNews{60};
  std::optional<Time> told_of_model_;
  int64_t broken_requests_ = 0;

  // Without a bound of its own, so that nobody ever waits to push. A request brings one submit, one
  // cancel and one finish_at at most, and the number of requests is bounded by `pending_`.
  Queue<Command> commands_{std::numeric_limits<size_t>::max()};
  std::atomic<uint64_t> next_id_{1};

  mutable std::mutex stats_mutex_;  // never held across work
  int32_t pending_ = 0;             // submitted and not finished
  sched::Stats published_;
  double busy_seconds_ = 0, step_seconds_ = 0;
  std::string fault_;
  std::exception_ptr fault_cause_;
  Time last_step_;
  std::thread thread_;  // last: it uses all the others
};

// Collects the events of one request; for callers that can wait.
class Collector {
 public:
  Collector();
  EventSink sink();
  // The next event; nullopt after `timeout`.
  std::optional<TokenEvent> next(std::chrono::milliseconds timeout = std::chrono::hours(24));

 private:
  std::shared_ptr<Queue<TokenEvent>> events_;
};

}  // namespace octet::engine
