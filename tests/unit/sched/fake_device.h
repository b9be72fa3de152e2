// A device without arithmetic: its KV cache remembers which token was written where, and its next
// token is a hash of the tokens that a slice can see through its blocks. So a wrong block, a lost
// token or a stale prefix changes the output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace octet::sched {

inline constexpr TokenId kVocab = 23;

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  hash *= 0xbf58476d1ce4e5b9ull;
  return hash ^ (hash >> 29);
}

// The next token after these, by definition.
inline TokenId next_token(const std::vector<TokenId>& tokens) {
  uint64_t hash = 1;
  for (TokenId token : tokens) hash = mix(hash, static_cast<uint64_t>(token) + 1);
  return static_cast<TokenId>(hash % kVocab);
}

struct Expected {
  std::vector<TokenId> output;
  Finish finish = Finish::length;
};

// What a request must give, computed without any scheduler. max_tokens: as resolved at admission.
inline Expected expected(const Request& request, int64_t max_tokens) {
  Expected out;
  std::vector<TokenId> tokens = request.prompt;
  const auto has = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  while (true) {
    const TokenId token = next_token(tokens);
    tokens.push_back(token);
    out.output.push_back(token);
    const auto length = static_cast<int64_t>(out.output.size());
    const bool stops =
        has(request.stop_ids, token) || (!request.ignore_eos && has(request.eos_ids, token));
    if (stops && length >= request.min_tokens) {
      out.finish = Finish::stop;
      return out;
    }
    if (length >= max_tokens) return out;
  }
}

class FakeDevice {
 public:
  explicit FakeDevice(const Config& config)
      : config_(config), slots_(static_cast<size_t>(config.pool_tokens()), kNoToken) {}

  // Runs a step the way a stream does: in the order of the launches, all writes before all reads.
  StepResult launch(const StepPlan& plan) {
    StepResult result;
    result.step = plan.step;
    std::vector<size_t> written;
    for (const Slice& slice : plan.slices) {
      for (int32_t i = 0; i < slice.count; ++i) {
        TokenId token = slice.tokens.at(static_cast<size_t>(i));
        if (slice.from) token = sampled_.at({slice.from->step, slice.from->slice});
        if (token < 0) throw std::runtime_error("a slice computes no token");
        const size_t slot = at(slice, slice.first + i);
        slots_[slot] = token;
        written.push_back(slot);
      }
    }
    std::sort(written.begin(), written.end());
    if (std::adjacent_find(written.begin(), written.end()) != written.end()) {
      throw std::runtime_error("two slices write the same place");
    }
    for (const Slice& slice : plan.slices) {
      result.tokens.emplace_back();
      if (!slice.sample) continue;
      std::vector<TokenId> seen;
      for (int32_t p = 0; p < slice.first + slice.count; ++p) seen.push_back(slots_[at(slice, p)]);
      const TokenId token = next_token(seen);
      const auto index = static_cast<int32_t>(result.tokens.size()) - 1;
      sampled_[{plan.step, index}] = token;
      result.tokens.back().push_back(token);
    }
    return result;
  }

 private:
  size_t at(const Slice& slice, int32_t position) const {
    const BlockId block = slice.blocks.at(static_cast<size_t>(position / config_.block_tokens));
    return static_cast<size_t>(block * config_.block_tokens + position % config_.block_tokens);
  }

  Config config_;
  std::vector<TokenId> slots_;
  std::map<std::pair<StepId, int32_t>, TokenId> sampled_;
};

// A scheduler, a fake device, and everything that came out. Throws std::runtime_error or Fault on
// the first broken promise; checks the whole state after every call.
class Driver {
 public:
  struct Outcome {
    Request request;
    Admission admission;
    std::vector<TokenId> output;
    std::optional<Finish> finish;
    std::optional<TokenId> stop_token;
    int32_t output_tokens = 0;
    int32_t cached_tokens = 0;
    bool started = false;
    std::vector<TokenId> scored;  // prompt tokens whose log-probabilities came, in order
    StepId submitted = 0;         // the step that was next
    int32_t passed_over = 0;      // plans in a row without it
  };

  explicit Driver(const Config& config)
      : config(config),
        scheduler(config),
        device_(config),
        log_([this](const std::string& line) { lines.push_back(line); }) {
    scheduler.set_log(&log_);
  }

  Admission submit(const Request& request) {
    const Admission admission = scheduler.submit(request);
    scheduler.check();
    if (admission.ok()) {
      Outcome outcome;
      outcome.request = request;
      outcome.admission = admission;
      outcome.submitted = next_step_;
      outcomes[request.id] = outcome;
      order.push_back(request.id);
    }
    return admission;
  }

  void cancel(SeqId id) {
    if (auto emission = scheduler.cancel(id)) take(*emission);
    scheduler.check();
  }

  void finish_at(SeqId id, int32_t output_len, Finish reason) {
    if (auto emission = scheduler.finish_at(id, output_len, reason)) {
      outcomes.at(id).output.resize(static_cast<size_t>(output_len));
      cut.insert(id);
      take(*emission);
    }
    scheduler.check();
  }

  // One plan, launched unless empty. True = launched.
  bool plan() {
    StepPlan plan = scheduler.plan();
    scheduler.check();
    if (plan.empty()) return false;
    check_plan(plan);
    next_step_ = plan.step + 1;
    StepResult result = device_.launch(plan);
    if (alter) alter(plan, result);
    in_flight_.emplace_back(std::move(plan), std::move(result));
    return true;
  }

  void apply() {
    const auto [plan, result] = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const Emission& emission : scheduler.apply(plan, result)) {
      if (emission.scored > 0) take_scored(emission, plan.slices.at(index(emission)));
      take(emission);
    }
    scheduler.check();
    ++steps;
  }

  // One turn of the engine's loop. False = nothing is left to do.
  bool turn() {
    if (!scheduler.has_work()) return false;
    while (scheduler.can_plan() && plan()) {
    }
    if (in_flight_.empty()) throw std::runtime_error("work, but nothing in flight");
    apply();
    return true;
  }

  void run() {
    for (int64_t turns = 0; turn(); ++turns) {
      if (turns > 200000) throw std::runtime_error("does not terminate");
    }
    const Stats stats = scheduler.stats();
    if (stats.blocks_held != 0) throw std::runtime_error("blocks are held after the end");
    for (const auto& [id, outcome] : outcomes) {
      if (!outcome.finish)
        throw std::runtime_error("request without an end: " + std::to_string(id));
    }
  }

  // The output of every request that was left alone equals the definition; of the others it is a
  // prefix of it.
  void check_outputs() const {
    for (const auto& [id, outcome] : outcomes) {
      const Expected want = expected(outcome.request, outcome.admission.max_tokens);
      const bool complete = outcome.finish == Finish::stop || outcome.finish == Finish::length;
      const bool whole = complete && !cut.contains(id);
      const std::vector<TokenId>& prompt = outcome.request.prompt;
      const size_t scored = !outcome.request.score ? 0 : prompt.size() - 1;
      if (outcome.scored.size() > scored || (whole && outcome.scored.size() != scored)) {
        throw std::runtime_error("prompt scored in part, or twice: " + std::to_string(id));
      }
      bool same = outcome.output.size() <= want.output.size() &&
                  std::equal(outcome.output.begin(), outcome.output.end(), want.output.begin());
      if (whole) same = same && outcome.output == want.output && *outcome.finish == want.finish;
      if (!same) throw std::runtime_error("wrong output of request " + std::to_string(id));
      if (outcome.output_tokens != static_cast<int32_t>(outcome.output.size())) {
        throw std::runtime_error("wrong usage of request " + std::to_string(id));
      }
    }
  }

  Config config;
  Scheduler scheduler;
  std::map<SeqId, Outcome> outcomes;
  std::vector<SeqId> order;        // of admission
  std::set<SeqId> cut;             // ended by finish_at
  std::vector<std::string> lines;  // the event log
  std::vector<StepPlan> plans;     // all that were launched
  std::function<void(const StepPlan&, StepResult&)> alter;
  int64_t steps = 0;

 private:
  static size_t index(const Emission& emission) { return static_cast<size_t>(emission.slice); }

  // Each prompt token but the first is scored once, in order, and before any output.
  void take_scored(const Emission& emission, const Slice& slice) {
    Outcome& outcome = outcomes.at(emission.seq);
    const std::vector<TokenId>& prompt = outcome.request.prompt;
    const auto first = static_cast<size_t>(slice.score_first);
    const bool right = outcome.request.score && outcome.output.empty() &&
                       emission.scored == static_cast<int32_t>(slice.scored.size()) &&
                       outcome.scored.size() == first && slice.score_first >= slice.first &&
                       slice.score_first + emission.scored <= slice.first + slice.count &&
                       first + slice.scored.size() < prompt.size() &&
                       std::equal(slice.scored.begin(), slice.scored.end(),
                                  prompt.begin() + slice.score_first + 1);
    if (!right) throw std::runtime_error("wrong tokens scored of " + std::to_string(emission.seq));
    outcome.scored.insert(outcome.scored.end(), slice.scored.begin(), slice.scored.end());
  }

  void take(const Emission& emission) {
    Outcome& outcome = outcomes.at(emission.seq);
    if (outcome.finish) throw std::runtime_error("an emission after the end");
    outcome.output.insert(outcome.output.end(), emission.tokens.begin(), emission.tokens.end());
    outcome.finish = emission.finish;
    outcome.stop_token = emission.stop_token;
    outcome.output_tokens = emission.output_tokens;
    outcome.cached_tokens = emission.cached_tokens;
  }

  void check_plan(const StepPlan& plan) {
    const auto fail = [&](const char* what) {
      throw std::runtime_error(std::string(what) + " in step " + std::to_string(plan.step));
    };
    if (plan.num_tokens() > config.max_num_batched_tokens) fail("budget exceeded");
    if (static_cast<int32_t>(plan.slices.size()) > config.max_num_seqs) fail("too many sequences");
    std::map<SeqId, bool> seen;
    int32_t scored = 0;
    for (const Slice& slice : plan.slices) {
      scored += static_cast<int32_t>(slice.scored.size());
      if (seen[slice.seq]) fail("a sequence twice");
      seen[slice.seq] = true;
      outcomes.at(slice.seq).started = true;
      if (config.max_chunk > 0 && slice.count > config.max_chunk) fail("chunk too long");
      if (slice.count != static_cast<int32_t>(slice.tokens.size())) fail("wrong token count");
      // No block that this slice writes is in use by a step in flight for someone else.
      for (int32_t p = slice.first; p < slice.first + slice.count; ++p) {
        const BlockId block = slice.blocks.at(static_cast<size_t>(p / config.block_tokens));
        for (const auto& [earlier, result] : in_flight_) {
          for (const Slice& other : earlier.slices) {
            if (other.seq == slice.seq) continue;
            if (std::count(other.blocks.begin(), other.blocks.end(), block)) {
              fail("a block changes hands in flight");
            }
          }
        }
      }
    }
    if (scored > config.max_scored_tokens) fail("too many logits wanted");
    check_order(plan, seen, fail);
    plans.push_back(plan);
  }

  // What a policy promises of the order, computed without the scheduler's own.
  template <typename Fail>
  void check_order(const StepPlan& plan, std::map<SeqId, bool>& seen, Fail fail) {
    // First come, first served: nobody starts before an older request has started or ended. (One
    // that is scored may hold its blocks for a while before its first slice.)
    bool gap_seen = false;
    for (SeqId id : order) {
      const Outcome& outcome = outcomes.at(id);
      if (outcome.finish || outcome.request.score || config.policy == Policy::priority) continue;
      if (!outcome.started) gap_seen = true;
      if (outcome.started && gap_seen) fail("overtaken before the start");
    }
    if (config.launch_depth != 1) return;
    // At depth 1 the first unfinished request computes in every step; where prompts come first, in
    // one of a few.
    const auto place = [&](SeqId id) {
      const Outcome& outcome = outcomes.at(id);
      if (config.policy != Policy::priority) return std::make_tuple(0, 0, id);
      const auto age = static_cast<int64_t>(plan.step - outcome.submitted);
      if (age >= config.max_wait_steps) return std::make_tuple(0, 0, id);
      return std::make_tuple(1, outcome.request.priority, id);
    };
    std::optional<SeqId> first;
    for (SeqId id : order) {
      if (!outcomes.at(id).finish && (!first || place(id) < place(*first))) first = id;
    }
    if (!first) return;
    int32_t& passed_over = outcomes.at(*first).passed_over;
    passed_over = seen[*first] ? 0 : passed_over + 1;
    const int32_t most = config.policy == Policy::prefill_first ? config.max_prefill_steps : 0;
    if (passed_over > most) fail("the first does not progress");
  }

  FakeDevice device_;
  EventLog log_;
  StepId next_step_ = 1;
  std::deque<std::pair<StepPlan, StepResult>> in_flight_;
};

}  // namespace octet::sched
