#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::engine {
namespace {

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
  return config;
}

}  // namespace

Engine::Engine(const model::Model& model, ops::Backend& backend, const EngineOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      scheduler_config_(scheduler_config(options, model, backend.info().launch_depth)) {
  const ops::BackendInfo& device = backend.info();
  const ops::KvLayout layout =
      kv_layout_of(model, options.kv_type, options.block_tokens, options.unit_kv_scale);
  const StepLimits limits{
      .rows = options.max_num_batched_tokens,
      .sequences = options.max_num_seqs,
      .blocks_per_sequence =
          (scheduler_config_.max_model_len + options.block_tokens - 1) / options.block_tokens,
      .logits_rows = options.max_num_seqs,
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
  // First, since it refuses a size that the device lacks; the scheduler has an entry for each
  // block.
  kv_ = std::make_unique<model::KvStore>(backend, layout, blocks, model.kv_scales());
  scheduler_ = std::make_unique<sched::Scheduler>(scheduler_config_);
  ledger_.kv = kv_->bytes();
  ledger_.kv_tokens = blocks * options.block_tokens;
  runner_ = std::make_unique<Runner>(model, backend, *kv_, limits, options.max_logprobs,
                                     device.launch_depth);
  runner_->prepare();
  published_ = scheduler_->stats();
  last_step_ = std::chrono::steady_clock::now();
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
  // Here, not on the engine's thread: a caller's mistake must not end the requests of others.
  invariant(request.sampling.logprobs <= options_.max_logprobs,
            "more log-probabilities asked for than the engine has memory for");
  const int64_t vocab = model_.config().vocab;
  invariant(std::ranges::all_of(request.prompt, [&](int32_t id) { return id >= 0 && id < vocab; }),
            "a prompt holds an id that is no token of the model");
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
    if (pending_++ == 0) last_step_ = std::chrono::steady_clock::now();
  }
  result.id = next_id_.fetch_add(1);
  Command command{.kind = Command::Kind::submit,
                  .id = result.id,
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
  EngineStats stats{.scheduler = published_, .fault = fault_};
  if (pending_ > 0) {
    stats.seconds_since_step =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - last_step_).count();
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
  last_step_ = std::chrono::steady_clock::now();
}

void Engine::loop() {
  TokenEvent last;
  last.finish = sched::Finish::cancelled;
  try {
    backend_.enter_thread();
    while (take_commands()) {
      if (scheduler_->has_work()) step();
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
  std::optional<sched::Emission> emission;
  switch (command.kind) {
    case Command::Kind::submit: {
      live_.emplace(command.id, Live{command.request.sampling, std::move(command.sink)});
      sched::Request request;
      request.id = command.id;
      request.prompt = std::move(command.request.prompt);
      request.max_tokens = command.request.max_tokens;
      request.min_tokens = command.request.min_tokens;
      request.eos_ids = model_.config().eos;
      request.stop_ids = std::move(command.request.stop_ids);
      request.ignore_eos = command.request.ignore_eos;
      request.salt = std::move(command.request.salt);
      const sched::Admission admission = scheduler_->submit(std::move(request));
      invariant(admission.ok(), "submit() admitted what the scheduler refuses");
      break;
    }
    case Command::Kind::cancel:
      emission = scheduler_->cancel(command.id);
      break;
    case Command::Kind::finish_at:
      emission = scheduler_->finish_at(command.id, command.output_tokens, sched::Finish::stop);
      break;
  }
  if (emission) deliver(*emission, nullptr);
}

void Engine::step() {
  while (scheduler_->can_plan()) {
    sched::StepPlan plan = scheduler_->plan();
    if (plan.empty()) break;
    runner_->launch(plan,
                    [&](sched::SeqId id) -> const Sampling& { return live_.at(id).sampling; });
    planned_.push_back(std::move(plan));
  }
  if (planned_.empty()) return;
  const StepOutput output = runner_->wait();
  const sched::StepPlan plan = std::move(planned_.front());
  planned_.pop_front();
  for (const sched::Emission& emission : scheduler_->apply(plan, output.result)) {
    deliver(emission, &output);
  }
}

void Engine::deliver(const sched::Emission& emission, const StepOutput* output) {
  const auto found = live_.find(emission.seq);
  if (found == live_.end()) return;
  TokenEvent event;
  event.finish = emission.finish;
  event.stop_token = emission.stop_token;
  event.prompt_tokens = emission.prompt_tokens;
  event.output_tokens = emission.output_tokens;
  event.cached_tokens = emission.cached_tokens;
  if (!emission.tokens.empty()) {
    invariant(output && emission.slice >= 0, "tokens come from a step");
    const auto& sampled = output->sampled[static_cast<size_t>(emission.slice)];
    invariant(emission.tokens.size() == 1 && sampled && sampled->token == emission.tokens[0],
              "an emission carries the token that its slice sampled");
    event.tokens.push_back(*sampled);
  }
  const bool is_last = event.finish.has_value();
  if (is_last) {
    // Before the event: who has seen the end finds room for the next request.
    const std::scoped_lock lock(stats_mutex_);
    --pending_;
  }
  found->second.sink(std::move(event));
  if (is_last) live_.erase(found);
}

// The end of the engine, by its own fault or because it is stopped: nothing is accepted any more,
// and what was accepted, executed or still queued, gets its last event.
void Engine::end_all(const TokenEvent& last) {
  commands_.close();
  auto ended = static_cast<int32_t>(live_.size());
  for (auto& [id, live] : live_) live.sink(last);
  live_.clear();
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
