#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/sentence.h"
#include "engine/first_not_finite.h"

namespace octet::engine {
namespace {

// vLLM's bounds.
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

sched::Config scheduler_config(const EngineOptions& options, const model::Model& model,
                               int launch_depth) {
  const int64_t limit = model.config().max_positions;
  if (options.max_model_len > limit) {
    throw Error({.what = "the model was not made for such long sequences",
                 .where = "--max-model-len",
                 .value = fmt::format("{}", options.max_model_len),
                 .accepted = fmt::format("at most {} (max_position_embeddings)", limit)});
  }
  sched::Config config;
  config.block_tokens = options.block_tokens;
  config.max_num_seqs = options.max_num_seqs;
  config.max_num_batched_tokens = options.max_num_batched_tokens;
  config.max_chunk = options.max_chunk;
  config.max_model_len =
      static_cast<int32_t>(options.max_model_len ? options.max_model_len : limit);
  config.launch_depth = launch_depth;
  config.enable_prefix_caching = options.enable_prefix_caching;
  config.policy = options.policy;
  config.max_scored_tokens = options.max_scored_tokens;
  return config;
}

// Overwrites all that one block holds.
void poison(ops::Backend& backend, const model::KvStore& kv, int64_t block, uint8_t byte) {
  const auto overwrite = [&](std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
      if (tensor) backend.fill(tensor.slice(block, 1), byte);
    }
  };
  for (size_t layer = 0; layer < kv.layout().layers.size(); ++layer) {
    const ops::GqaCache& gqa = kv.gqa(static_cast<int64_t>(layer));
    overwrite({gqa.k, gqa.v, gqa.k_scale, gqa.v_scale, gqa.k_absmax, gqa.v_absmax});
    const ops::MlaCache& mla = kv.mla(static_cast<int64_t>(layer));
    overwrite({mla.latent, mla.rope, mla.latent_scale});
  }
}

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// What a caller must not ask: a mistake here would end the requests of others. Checked on the
// caller's thread.
void check(const GenRequest& request, const EngineOptions& options, int64_t vocab) {
  const auto exists = [&](int32_t id) { return id >= 0 && id < vocab; };
  const Sampling& how = request.sampling;
  invariant(std::max(how.logprobs, request.prompt_logprobs) <= options.max_logprobs,
            "more log-probabilities asked for than the engine has memory for");
  invariant(std::ranges::all_of(request.prompt, exists),
            "a prompt holds an id that is no token of the model");
  invariant(
      std::ranges::all_of(request.stop_ids, exists) && std::ranges::all_of(how.allowed, exists) &&
          std::ranges::all_of(
              how.logit_bias,
              [&](const auto& bias) { return exists(bias.first) && !std::isnan(bias.second); }) &&
          std::ranges::all_of(how.bad_words,
                              [&](const auto& word) { return std::ranges::all_of(word, exists); }),
      "a rule names an id that is no token of the model");
  invariant(how.repetition_penalty > 0 && std::isfinite(how.repetition_penalty) &&
                std::isfinite(how.presence_penalty) && std::isfinite(how.frequency_penalty),
            "penalties are finite, and repetition's is above 0");
}

// The error, and where in the model it begins; the error alone where there is no memory to look.
Error with_place(const Error& error, const model::Model& model, ops::Backend& backend,
                 std::span<const int32_t> tokens, model::KvType kv) {
  ErrorParts parts = error.parts();
  try {
    parts.where += "; " + first_not_finite(model, backend, tokens, kv);
  } catch (const Error&) {
    return error;
  }
  return Error(parts);
}

#ifdef NDEBUG
constexpr bool kDebug = false;
#else
constexpr bool kDebug = true;
#endif

// Of what holds the tokens of all layers, if that is host memory.
std::vector<std::span<std::byte>> host_memory_of(const model::KvStore& kv) {
  std::vector<std::span<std::byte>> parts;
  for (size_t i = 0; i < kv.layout().layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const ops::GqaCache& gqa = kv.gqa(layer);
    const ops::MlaCache& mla = kv.mla(layer);
    for (const Tensor* part : {&gqa.k, &gqa.v, &mla.latent, &mla.rope, &mla.latent_scale}) {
      if (*part) parts.push_back(host_bytes(*part));
    }
  }
  return parts;
}

}  // namespace

Engine::Engine(const model::Model& model, ops::Backend& backend, const EngineOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      scheduler_config_(scheduler_config(options, model, backend.info().launch_depth)),
      step_tokens_(kStepTokens) {
  const ops::BackendInfo& device = backend.info();
  const ops::KvLayout layout =
      kv_layout_of(model, options.kv_type, options.block_tokens, options.unit_kv_scale);
  const StepLimits limits{
      .rows = options.max_num_batched_tokens,
      .sequences = options.max_num_seqs,
      .blocks_per_sequence =
          (scheduler_config_.max_model_len + options.block_tokens - 1) / options.block_tokens,
      .logits_rows = std::min<int64_t>(int64_t{options.max_num_seqs} + options.max_scored_tokens,
                                       options.max_num_batched_tokens),
      .block_tokens = options.block_tokens};
  ledger_ = ledger_of(model, device, layout, limits, options.max_logprobs);
  const int64_t blocks =
      kv_blocks({.layout = layout,
                 .max_model_len = scheduler_config_.max_model_len,
                 .max_num_seqs = options.max_num_seqs,
                 .asked_bytes = options.kv_cache_bytes,
                 .most_bytes = options.kv_cache_bytes > 0
                                   ? 0
                                   : kv_budget(device, options.memory_utilization, ledger_)});
  scheduler_config_.num_blocks = static_cast<int32_t>(blocks);
  sched::validate(scheduler_config_);
  // Memory of the host is given out before it is there, so that it has to be counted; a device
  // refuses by itself. First, since the scheduler has an entry for each block.
  require_host_memory(device, blocks * layout.bytes_per_block(), ledger_.arena);
  kv_ = std::make_unique<model::KvStore>(backend, layout, blocks, model.kv_scales());
  scheduler_ = std::make_unique<sched::Scheduler>(scheduler_config_);
  if (!options.record_events.empty()) {
    recorder_ = std::make_unique<EventRecorder>(options.record_events, options.record_events_bytes);
    scheduler_->set_log(&recorder_->log());
  }
  ledger_.kv = kv_->bytes();
  ledger_.kv_tokens = blocks * options.block_tokens;
  runner_ = std::make_unique<Runner>(model, backend, *kv_, limits, options.max_logprobs,
                                     device.launch_depth);
  runner_->prepare();
  kv_probe_ = std::make_unique<KvProbe>(backend, *kv_);
  if (options.populate_memory) {
    std::vector<std::span<std::byte>> parts = host_memory_of(*kv_);
    parts.push_back(runner_->host_arena());
    populator_ = std::make_unique<Populator>(std::move(parts));
  }
  published_ = scheduler_->stats();
  last_step_ = Clock::now();
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  stop();
}

void Engine::stop() {
  commands_.close();
  if (thread_.joinable()) thread_.join();
}

Submitted Engine::submit(GenRequest request, EventSink sink) {
  check(request, options_, model_.config().vocab);
  Submitted result;
  sched::Request wanted;
  wanted.prompt = request.prompt;
  wanted.max_tokens = request.max_tokens;
  wanted.min_tokens = request.min_tokens;
  result.admission = sched::admit(scheduler_config_, wanted);
  if (!result.admission.ok()) return result;
  {
    const std::scoped_lock lock(stats_mutex_);
    if (!fault_.empty()) {
      result.unavailable = fault_;
      return result;
    }
    if (pending_ >= max_requests()) {
      result.overloaded = true;
      return result;
    }
    // Idle time is not the age of a step: the clock starts with the work.
    if (pending_++ == 0) last_step_ = Clock::now();
  }
  result.id = next_id_.fetch_add(1);
  Command command{.kind = Command::Kind::submit,
                  .id = result.id,
                  .submitted = Clock::now(),
                  .request = std::move(request),
                  .sink = std::move(sink)};
  if (!commands_.push(std::move(command))) {
    const std::scoped_lock lock(stats_mutex_);
    --pending_;
    result.unavailable = fault_.empty() ? "the engine was stopped" : fault_;
  }
  return result;
}

void Engine::cancel(uint64_t id) {
  commands_.push({.kind = Command::Kind::cancel, .id = id});
}

void Engine::finish_at(uint64_t id, int32_t output_tokens) {
  commands_.push({.kind = Command::Kind::finish_at, .id = id, .output_tokens = output_tokens});
}

EngineStats Engine::stats() const {
  const std::scoped_lock lock(stats_mutex_);
  EngineStats stats{.scheduler = published_,
                    .fault = fault_,
                    .busy_seconds = busy_seconds_,
                    .step_seconds = step_seconds_};
  if (pending_ > 0) {
    stats.seconds_since_step = seconds(Clock::now() - last_step_);
  }
  return stats;
}

void Engine::rethrow_fault() const {
  const std::scoped_lock lock(stats_mutex_);
  if (fault_cause_) std::rethrow_exception(fault_cause_);
}

void Engine::publish() {
  const std::scoped_lock lock(stats_mutex_);
  published_ = scheduler_->stats();
  busy_seconds_ = seconds(busy_);
  step_seconds_ = seconds(in_steps_);
  last_step_ = Clock::now();
}

void Engine::loop() {
  TokenEvent last;
  last.finish = sched::Finish::cancelled;
  try {
    backend_.enter_thread();
    while (true) {
      const bool idle = !scheduler_->has_work();
      Time begin = Clock::now();
      if (!take_commands()) break;
      if (idle) begin = Clock::now();
      expire();
      if (scheduler_->has_work()) step();
      busy_ += Clock::now() - begin;
      publish();
    }
    backend_.sync();  // a step in flight uses memory that is about to go
  } catch (const std::exception& error) {
    last = {};
    last.fault = error.what();
    if (last.fault.empty()) last.fault = "unknown";
    const std::scoped_lock lock(stats_mutex_);
    fault_ = last.fault;
    fault_cause_ = std::current_exception();
  }
  end_all(last);
}

// False when the engine is to stop. Waits while there is nothing to do.
bool Engine::take_commands() {
  if (!scheduler_->has_work()) {
    std::optional<Command> command = commands_.pop();
    if (!command) return false;
    execute(*command);
  }
  if (commands_.closed()) return false;
  while (std::optional<Command> command = commands_.try_pop()) execute(*command);
  return true;
}

void Engine::execute(Command& command) {
  switch (command.kind) {
    case Command::Kind::submit:
      start(command);
      break;
    case Command::Kind::cancel:
      if (const auto emission = scheduler_->cancel(command.id)) deliver(*emission, nullptr);
      break;
    case Command::Kind::finish_at:
      end(command.id, command.output_tokens, sched::Finish::stop);
      break;
  }
}

void Engine::start(Command& command) {
  GenRequest& wanted = command.request;
  sched::Request request;
  request.id = command.id;
  request.max_tokens = wanted.max_tokens;
  request.min_tokens = wanted.min_tokens;
  request.eos_ids = model_.config().eos;
  request.stop_ids = std::move(wanted.stop_ids);
  request.ignore_eos = wanted.ignore_eos;
  request.salt = std::move(wanted.salt);
  request.priority = wanted.priority;
  request.score = wanted.prompt_logprobs >= 0;

  Live live{.sampling = std::move(wanted.sampling),
            .prompt_logprobs = wanted.prompt_logprobs,
            .sink = std::move(command.sink),
            .submitted = command.submitted};
  if (TokenRules::needed(live.sampling, wanted.min_tokens, wanted.constraint)) {
    std::vector<int32_t> end_ids = request.stop_ids;
    if (!request.ignore_eos) {
      end_ids.insert(end_ids.end(), request.eos_ids.begin(), request.eos_ids.end());
    }
    live.rules = std::make_unique<TokenRules>(live.sampling, wanted.prompt, wanted.min_tokens,
                                              std::move(end_ids), model_.config().vocab,
                                              std::move(wanted.constraint));
    request.lockstep = live.rules->lockstep();
  }
  if (wanted.timeout_s) {
    // A time beyond all clocks is none.
    constexpr double longest = 1e9;
    live.deadline = command.submitted +
                    std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(std::clamp(*wanted.timeout_s, 0.0, longest)));
    deadlines_.emplace(*live.deadline, command.id);
  }
  live_.emplace(command.id, std::move(live));
  request.prompt = std::move(wanted.prompt);
  const sched::Admission admission = scheduler_->submit(std::move(request));
  invariant(admission.ok(), "submit() admitted what the scheduler refuses");
}

void Engine::end(uint64_t id, int32_t output_tokens, sched::Finish reason, Trouble trouble) {
  if (const auto emission = scheduler_->finish_at(id, output_tokens, reason)) {
    deliver(*emission, nullptr, std::move(trouble));
  }
}

// Ends the requests whose time is up, in whatever phase they are.
void Engine::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= Clock::now()) {
    const uint64_t id = deadlines_.begin()->second;
    end(id, scheduler_->find(id)->output_len(), sched::Finish::timeout);
  }
}

void Engine::launch() {
  if (options_.poison_free_blocks) {
    for (const sched::BlockId block : scheduler_->free_blocks()) {
      poison(backend_, *kv_, block, *options_.poison_free_blocks);
    }
  }
  while (scheduler_->can_plan()) {
    sched::StepPlan plan = scheduler_->plan();
    if (plan.empty()) break;
    const Time begin = Clock::now();
    for (const sched::Slice& slice : plan.slices) {
      Live& live = live_.at(slice.seq);
      if (!live.started) live.started = begin;
    }
    runner_->launch(plan, [&](sched::SeqId id) {
      const Live& live = live_.at(id);
      return Draw{live.sampling, live.rules.get(), live.prompt_logprobs};
    });
    in_steps_ += Clock::now() - begin;
    planned_.push_back(std::move(plan));
  }
}

void Engine::step() {
  launch();
  if (planned_.empty()) return;
  const Time begin = Clock::now();
  StepOutput output = runner_->wait();
  step_end_ = Clock::now();
  in_steps_ += step_end_ - begin;
  const sched::StepPlan plan = std::move(planned_.front());
  planned_.pop_front();
  kv_probe_->after(plan);
  step_tokens_.add(plan.num_tokens());
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const SliceOutput& slice = output.slices[i];
    if (!slice.no_token && !slice.broken) continue;
    const uint64_t id = plan.slices[i].seq;
    std::optional<Error> broken = slice.broken;
    if (broken) {
      // As often as the log has a line of it, the place is looked for.
      const bool news = !told_of_model_ || Clock::now() - *told_of_model_ >= kModelNews;
      const sched::Sequence* sequence = news ? scheduler_->find(id) : nullptr;
      if (sequence) {
        broken = with_place(*broken, model_, backend_, sequence->tokens, options_.kv_type);
      }
      tell_of_model(*broken);
    }
    const Trouble trouble =
        broken ? Trouble{sentence_of(broken->parts()), true}
               : Trouble{reason_of(id,
                                   "no token is left to draw: allowed tokens, bad words, the least "
                                   "number of tokens and the form that is asked for exclude all")};
    if (const sched::Sequence* sequence = scheduler_->find(id)) {
      end(id, sequence->output_len(), sched::Finish::error, trouble);
    }
  }
  for (const sched::Emission& emission : scheduler_->apply(plan, output.result)) {
    deliver(emission, &output);
  }
  if (kDebug || options_.check_every_step) scheduler_->check();
}

// Why a request cannot go on: what its constraint says, or else this.
std::string Engine::reason_of(uint64_t id, const char* otherwise) const {
  const auto found = live_.find(id);
  const TokenRules* rules = found != live_.end() ? found->second.rules.get() : nullptr;
  const std::string reason = rules ? rules->given_up() : std::string();
  return reason.empty() ? otherwise : reason;
}

// A broken model breaks each request: a line a minute is enough.
void Engine::tell_of_model(const Error& error) {
  ++broken_requests_;
  const Time now = Clock::now();
  if (told_of_model_ && now - *told_of_model_ < kModelNews) return;
  told_of_model_ = now;
  log::error("a request ends here: {} ({} such requests since the start)",
             sentence_of(error.parts()), broken_requests_);
}

void Engine::deliver(const sched::Emission& emission, StepOutput* output, Trouble trouble) {
  const auto found = live_.find(emission.seq);
  if (found == live_.end()) return;
  Live& live = found->second;
  TokenEvent event;
  event.finish = emission.finish;
  event.stop_token = emission.stop_token;
  event.prompt_tokens = emission.prompt_tokens;
  event.output_tokens = emission.output_tokens;
  event.cached_tokens = emission.cached_tokens;
  event.error = std::move(trouble.why);
  event.of_model = trouble.of_model;
  bool complete = false;
  if (emission.slice >= 0) {
    invariant(output, "tokens come from a step");
    SliceOutput& slice = output->slices[static_cast<size_t>(emission.slice)];
    event.prompt = std::move(slice.scored);
    if (!emission.tokens.empty()) {
      invariant(emission.tokens.size() == 1 && slice.sampled &&
                    slice.sampled->token == emission.tokens[0],
                "an emission carries the token that its slice sampled");
      event.tokens.push_back(std::move(*slice.sampled));
      if (!live.first_token) live.first_token = step_end_;
      if (live.rules && !emission.finish) {
        if (!live.rules->accept(emission.tokens[0])) {
          return end(emission.seq, emission.output_tokens - 1, sched::Finish::error,
                     {reason_of(emission.seq,
                                "a token was drawn that the form that is asked for does not "
                                "allow")});
        }
        complete = live.rules->finished();
      }
    }
  }
  if (!event.finish) {
    live.sink(std::move(event));
    if (complete) end(emission.seq, emission.output_tokens, sched::Finish::stop);
    return;
  }
  const Time now = Clock::now();
  const Time started = live.started.value_or(now);
  const Time first_token = live.first_token.value_or(now);
  event.timing = {.queue_s = seconds(started - live.submitted),
                  .prefill_s = seconds(first_token - started),
                  .decode_s = seconds(now - first_token),
                  .total_s = seconds(now - live.submitted)};
  {
    // Before the event: who has seen the end finds room for the next request.
    const std::scoped_lock lock(stats_mutex_);
    --pending_;
  }
  if (live.deadline) deadlines_.erase({*live.deadline, emission.seq});
  live.sink(std::move(event));
  live_.erase(found);
}

// The end of the engine, by its own fault or because it is stopped: nothing is accepted any more,
// and what was accepted, executed or still queued, gets its last event.
void Engine::end_all(const TokenEvent& last) {
  commands_.close();
  auto ended = static_cast<int32_t>(live_.size());
  for (auto& [id, live] : live_) live.sink(last);
  live_.clear();
  deadlines_.clear();
  while (std::optional<Command> command = commands_.try_pop()) {
    if (command->kind != Command::Kind::submit) continue;
    command->sink(last);
    ++ended;
  }
  const std::scoped_lock lock(stats_mutex_);
  pending_ -= ended;
}

Collector::Collector() : events_(std::make_shared<Queue<TokenEvent>>(1 << 16)) {}

EventSink Collector::sink() {
  return [events = events_](TokenEvent event) { events->push(std::move(event)); };
}

std::optional<TokenEvent> Collector::next(std::chrono::milliseconds timeout) {
  return events_->pop_for(timeout);
}

}  // namespace octet::engine
