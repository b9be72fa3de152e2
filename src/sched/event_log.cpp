#include "sched/event_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <deque>
#include <map>
#include <string_view>

#include "base/error.h"
#include "sched/scheduler.h"

namespace octet::sched {
namespace {

// ---- writing ----

template <typename T>
std::string list(const std::vector<T>& values) {
  return values.empty() ? "-" : fmt::format("{}", fmt::join(values, ","));
}

template <typename T>
std::string maybe(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "-";
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out.empty() ? "-" : out;
}

// ---- reading: `verb key=value key=value` ----

struct Line {
  int64_t number = 0;  // counted from 1
  std::string_view text;
  std::string_view verb;
  std::map<std::string_view, std::string_view> fields;
};

[[noreturn]] void bad(const Line& line, const std::string& what, const std::string& accepted) {
  throw Error({.what = "event log: " + what,
               .where = fmt::format("line {}", line.number),
               .value = std::string(line.text),
               .accepted = accepted,
               .fix = "record the log again with this version"});
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t end = text.find(separator);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

Line parse(int64_t number, std::string_view text) {
  Line line{.number = number, .text = text, .verb = {}, .fields = {}};
  for (std::string_view word : split(text, ' ')) {
    const size_t equals = word.find('=');
    if (line.verb.empty()) {
      line.verb = word;
    } else if (equals == std::string_view::npos) {
      bad(line, "word without a value", "key=value");
    } else {
      line.fields[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return line;
}

std::string_view field(const Line& line, std::string_view key) {
  const auto found = line.fields.find(key);
  if (found == line.fields.end()) bad(line, "a field is missing", std::string(key) + "=...");
  return found->second;
}

template <typename T>
T number(const Line& line, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    bad(line, fmt::format("'{}' is not a number in range", text), "a decimal number");
  }
  return value;
}

int32_t integer(const Line& line, std::string_view key) {
  return number<int32_t>(line, field(line, key));
}

bool flag(const Line& line, std::string_view key) {
  return integer(line, key) != 0;
}

std::vector<TokenId> tokens(const Line& line, std::string_view text) {
  std::vector<TokenId> out;
  if (text == "-") return out;
  for (std::string_view word : split(text, ',')) out.push_back(number<TokenId>(line, word));
  return out;
}

std::string unhex(const Line& line, std::string_view text) {
  std::string out;
  if (text == "-") return out;
  if (text.size() % 2 != 0) bad(line, "odd number of hexadecimal digits", "two for each byte");
  for (size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2) {
      bad(line, "not hexadecimal", "0-9 a-f");
    }
    out.push_back(static_cast<char>(value));
  }
  return out;
}

Finish finish_reason(const Line& line, std::string_view text) {
  for (Finish finish :
       {Finish::stop, Finish::length, Finish::cancelled, Finish::timeout, Finish::error}) {
    if (text == to_string(finish)) return finish;
  }
  bad(line, "unknown finish reason", "stop, length, cancelled, timeout, error");
}

Config parse_config(const Line& line) {
  Config config;
  config.block_tokens = integer(line, "block_tokens");
  config.num_blocks = integer(line, "num_blocks");
  config.max_num_seqs = integer(line, "max_num_seqs");
  config.max_num_batched_tokens = integer(line, "max_num_batched_tokens");
  config.max_model_len = integer(line, "max_model_len");
  config.max_chunk = integer(line, "max_chunk");
  config.launch_depth = integer(line, "launch_depth");
  config.enable_prefix_caching = flag(line, "enable_prefix_caching");
  config.policy = parse_policy(field(line, "policy"));
  config.max_scored_tokens = integer(line, "max_scored_tokens");
  config.max_wait_steps = integer(line, "max_wait_steps");
  config.max_prefill_steps = integer(line, "max_prefill_steps");
  return config;
}

Request parse_request(const Line& line) {
  Request request;
  request.id = number<SeqId>(line, field(line, "id"));
  if (field(line, "max_tokens") != "-") request.max_tokens = integer(line, "max_tokens");
  request.min_tokens = integer(line, "min_tokens");
  request.ignore_eos = flag(line, "ignore_eos");
  request.lockstep = flag(line, "lockstep");
  request.priority = integer(line, "priority");
  request.score = flag(line, "score");
  request.salt = unhex(line, field(line, "salt"));
  request.eos_ids = tokens(line, field(line, "eos"));
  request.stop_ids = tokens(line, field(line, "stop"));
  request.prompt = tokens(line, field(line, "prompt"));
  return request;
}

StepResult parse_result(const Line& line) {
  StepResult result;
  result.step = number<StepId>(line, field(line, "step"));
  for (std::string_view slice : split(field(line, "tokens"), ';')) {
    result.tokens.push_back(tokens(line, slice));
  }
  return result;
}

}  // namespace

void EventLog::config(const Config& c) {
  sink_(fmt::format(
      "config block_tokens={} num_blocks={} max_num_seqs={} max_num_batched_tokens={} "
      "max_model_len={} max_chunk={} launch_depth={} enable_prefix_caching={:d} policy={} "
      "max_scored_tokens={} max_wait_steps={} max_prefill_steps={}",
      c.block_tokens, c.num_blocks, c.max_num_seqs, c.max_num_batched_tokens, c.max_model_len,
      c.max_chunk, c.launch_depth, c.enable_prefix_caching, to_string(c.policy),
      c.max_scored_tokens, c.max_wait_steps, c.max_prefill_steps));
}

void EventLog::submit(const Request& r) {
  sink_(fmt::format(
      "submit id={} max_tokens={} min_tokens={} ignore_eos={:d} lockstep={:d} priority={} "
      "score={:d} salt={} eos={} stop={} prompt={}",
      r.id, maybe(r.max_tokens), r.min_tokens, r.ignore_eos, r.lockstep, r.priority, r.score,
      hex(r.salt), list(r.eos_ids), list(r.stop_ids), list(r.prompt)));
}

void EventLog::admission(const Admission& a) {
  sink_(fmt::format(" admission reason={} prompt={} max_tokens={} model={} pool={}",
                    to_string(a.reason), a.prompt_tokens, a.max_tokens, a.max_model_len,
                    a.pool_tokens));
}

void EventLog::cancel(SeqId id) {
  sink_(fmt::format("cancel id={}", id));
}

void EventLog::finish_at(SeqId id, int32_t output_len, Finish reason) {
  sink_(fmt::format("finish_at id={} output={} reason={}", id, output_len, to_string(reason)));
}

void EventLog::plan() {
  sink_("plan");
}

void EventLog::planned(const StepPlan& plan) {
  for (const Slice& s : plan.slices) {
    sink_(fmt::format(
        " step={} seq={} first={} count={} known={} prompt={} sample={:d} from={} tokens={} "
        "scored={} blocks={}",
        plan.step, s.seq, s.first, s.count, s.known, s.prompt_len, s.sample,
        s.from ? fmt::format("{}:{}", s.from->step, s.from->slice) : "-", list(s.tokens),
        s.scored.empty() ? "-" : fmt::format("{}:{}", s.score_first, list(s.scored)),
        list(s.blocks)));
  }
}

void EventLog::apply(const StepResult& result) {
  std::string slices;
  for (const std::vector<TokenId>& sampled : result.tokens) {
    if (!slices.empty()) slices += ';';
    slices += list(sampled);
  }
  sink_(fmt::format("apply step={} tokens={}", result.step, slices));
}

void EventLog::emitted(const Emission& e) {
  sink_(
      fmt::format(" emit seq={} slice={} tokens={} scored={} finish={} stop_token={} prompt={} "
                  "output={} cached={}",
                  e.seq, e.slice, list(e.tokens), e.scored, e.finish ? to_string(*e.finish) : "-",
                  maybe(e.stop_token), e.prompt_tokens, e.output_tokens, e.cached_tokens));
}

ReplayReport replay(std::span<const std::string> lines) {
  std::vector<std::string> again;
  EventLog log([&](const std::string& line) { again.push_back(line); });
  std::optional<Scheduler> scheduler;
  std::deque<StepPlan> in_flight;
  ReplayReport report;
  size_t compared = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || lines[i][0] == ' ') continue;  // an output
    const Line line = parse(static_cast<int64_t>(i) + 1, lines[i]);
    ++report.events;
    if (line.verb == "config") {
      if (scheduler) bad(line, "second configuration", "one, in the first line");
      scheduler.emplace(parse_config(line));
      scheduler->set_log(&log);
      continue;
    }
    if (!scheduler) bad(line, "no configuration", "config ... in the first line");
    if (line.verb == "submit") {
      scheduler->submit(parse_request(line));
    } else if (line.verb == "cancel") {
      scheduler->cancel(number<SeqId>(line, field(line, "id")));
    } else if (line.verb == "finish_at") {
      scheduler->finish_at(number<SeqId>(line, field(line, "id")), integer(line, "output"),
                           finish_reason(line, field(line, "reason")));
    } else if (line.verb == "plan") {
      StepPlan plan = scheduler->plan();
      if (!plan.empty()) in_flight.push_back(std::move(plan));
    } else if (line.verb == "apply") {
      if (in_flight.empty()) bad(line, "no step is in flight", "a plan before it");
      scheduler->apply(in_flight.front(), parse_result(line));
      in_flight.pop_front();
    } else {
      bad(line, "unknown event", "config, submit, cancel, finish_at, plan, apply");
    }
    // Stop at the first difference: what follows would not fit to it.
    for (; compared < again.size(); ++compared) {
      if (compared < lines.size() && again[compared] == lines[compared]) continue;
      report.first_difference = static_cast<int64_t>(compared);
      report.recorded = compared < lines.size() ? lines[compared] : "";
      report.replayed = again[compared];
      return report;
    }
  }
  if (again.size() < lines.size()) {
    report.first_difference = static_cast<int64_t>(again.size());
    report.recorded = lines[again.size()];
  }
  return report;
}

}  // namespace octet::sched
