#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::engine {
namespace {

// What a token costs in the cache decides how many fit; at least one full sequence must.
int64_t kv_blocks(const EngineOptions& options, const ops::KvLayout& layout, int64_t max_model_len,
                  int64_t free_bytes) {
  const int64_t per_sequence = (max_model_len + layout.block_tokens - 1) / layout.block_tokens;
  const int64_t block_bytes = layout.bytes_per_block();
  if (options.kv_cache_bytes > 0) {
    const int64_t blocks = options.kv_cache_bytes / block_bytes;
    if (blocks < 1) {
      throw Error(
          {.what = "the KV cache holds not even one block",
           .where = "--kv-cache-memory",
           .value = fmt::format("{} bytes", options.kv_cache_bytes),
           .accepted = fmt::format("at least {} bytes ({} for one sequence of {} tokens)",
                                   block_bytes, per_sequence * block_bytes, max_model_len)});
    }
    return blocks;
  }
  const int64_t wanted = per_sequence * options.max_num_seqs;
  const int64_t affordable = free_bytes > 0 ? free_bytes / 4 / block_bytes : wanted;
  return std::clamp(wanted, std::min(per_sequence, wanted), std::max(per_sequence, affordable));
}

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
      scheduler_config_(scheduler_config(options, model, backend.info().launch_depth)),
      // Cancels must get through when requests are refused, so the queue is longer than the bound.
      commands_(static_cast<size_t>(options.max_queued_requests) * 4 + 64) {
  const ops::KvLayout layout =
      model::kv_layout(model.config(), kv_options(model, options.kv_type, options.block_tokens));
  const int64_t blocks =
      kv_blocks(options, layout, scheduler_config_.max_model_len, backend.info().memory_bytes);
  scheduler_config_.num_blocks = static_cast<int32_t>(blocks);
  sched::validate(scheduler_config_);
  scheduler_ = std::make_unique<sched::Scheduler>(scheduler_config_);
  kv_ = std::make_unique<model::KvStore>(backend, layout, blocks, model.kv_scales());
  const StepLimits limits{
      .rows = options.max_num_batched_tokens,
      .sequences = options.max_num_seqs,
      .blocks_per_sequence =
          (scheduler_config_.max_model_len + options.block_tokens - 1) / options.block_tokens,
      .logits_rows = options.max_num_seqs};
  runner_ = std::make_unique<Runner>(model, backend, *kv_, limits, options.max_logprobs,
                                     backend.info().launch_depth);
  ledger_ = {.mapped_weights = mapped_weight_bytes(model),
             .owned_weights = model.owned_bytes(),
             .arena = static_cast<int64_t>(runner_->arena_bytes()),
             .kv = kv_->bytes(),
             .kv_tokens = blocks * options.block_tokens};
  published_ = scheduler_->stats();
  last_step_ = std::chrono::steady_clock::now();
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  commands_.push({.kind = Command::Kind::stop});
  thread_.join();
}

Submitted Engine::submit(GenRequest request, EventSink sink) {
  Submitted result;
  sched::Request wanted;
  wanted.prompt = request.prompt;
  wanted.max_tokens = request.max_tokens;
  wanted.min_tokens = request.min_tokens;
  result.admission = sched::admit(scheduler_config_, wanted);
  if (!result.admission.ok()) return result;
  if (pending_.fetch_add(1) >= options_.max_queued_requests + options_.max_num_seqs) {
    pending_.fetch_sub(1);
    result.overloaded = true;
    return result;
  }
  result.id = next_id_.fetch_add(1);
  Command command{.kind = Command::Kind::submit,
                  .id = result.id,
                  .request = std::move(request),
                  .sink = std::move(sink)};
  if (!commands_.push(std::move(command))) {
    pending_.fetch_sub(1);
    result.overloaded = true;
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
  if (pending_.load() > 0) {
    stats.seconds_since_step =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - last_step_).count();
  }
  return stats;
}

void Engine::publish() {
  const std::scoped_lock lock(stats_mutex_);
  published_ = scheduler_->stats();
  last_step_ = std::chrono::steady_clock::now();
}

void Engine::loop() {
  try {
    while (take_commands()) {
      if (scheduler_->has_work()) step();
      publish();
    }
    for (auto& [id, live] : live_) {
      TokenEvent event;
      event.finish = sched::Finish::cancelled;
      live.sink(std::move(event));
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// False when the engine is to stop. Waits while there is nothing to do.
bool Engine::take_commands() {
  if (!scheduler_->has_work()) {
    std::optional<Command> command = commands_.pop();
    if (!command || command->kind == Command::Kind::stop) return false;
    // Idle time is not the age of a step: the clock starts with the work.
    publish();
    execute(*command);
  }
  while (std::optional<Command> command = commands_.try_pop()) {
    if (command->kind == Command::Kind::stop) return false;
    execute(*command);
  }
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
    case Command::Kind::stop:
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
  found->second.sink(std::move(event));
  if (is_last) {
    live_.erase(found);
    pending_.fetch_sub(1);
  }
}

// The third kind of error: every stream ends with the reason, and nothing is accepted any more.
void Engine::fail(const std::string& what) {
  {
    const std::scoped_lock lock(stats_mutex_);
    fault_ = what;
  }
  for (auto& [id, live] : live_) {
    TokenEvent event;
    event.fault = what;
    live.sink(std::move(event));
  }
  live_.clear();
  commands_.close();
  while (std::optional<Command> command = commands_.try_pop()) {
    if (command->kind != Command::Kind::submit) continue;
    TokenEvent event;
    event.fault = what;
    command->sink(std::move(event));
  }
}

Collector::Collector() : events_(std::make_shared<Queue<TokenEvent>>(1 << 16)) {}

EventSink Collector::sink() {
  return [events = events_](TokenEvent event) { events->push(std::move(event)); };
}

std::optional<TokenEvent> Collector::next(std::chrono::milliseconds timeout) {
  return events_->pop_for(timeout);
}

}  // namespace octet::engine
