// octet generate: one completion that streams to the terminal, or a file of prompts that run as one
// batch through the engine.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/progress.h"
#include "base/queue.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "engine/engine.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace octet::cli {
namespace {

struct GenerateOptions {
  ModelOptions model;
  BackendOptions backend;
  std::optional<std::string> prompt;
  std::string prompt_file;
  int max_tokens = 128;
  float temperature = 0.0f, top_p = 1.0f, min_p = 0.0f;
  int top_k = 0;
  int64_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  int logprobs = 0;
  int max_num_seqs = 32, max_num_batched_tokens = 512;
  bool prefix_caching = true;
  double memory_utilization = engine::EngineOptions().memory_utilization;
  std::string json;
};

OptionTable table_of(GenerateOptions& o) {
  OptionTable table("octet generate", "Complete one prompt, or a file of prompts as one batch.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.group("Prompts");
  table.add("--prompt", &o.prompt, "the text to continue");
  table.add("--prompt-file", &o.prompt_file,
            "JSON: an object of name -> prompt, or an array of prompts; a prompt is a text or an "
            "array of token ids",
            {.metavar = "FILE"});
  table.group("Sampling");
  table.add("--max-tokens", &o.max_tokens, "most tokens of one completion", {.least = 1});
  table.add("--temperature", &o.temperature, "0 takes the most likely token",
            {.least = 0, .most = 1e6});
  table.add("--top-p", &o.top_p, "keep the least set of tokens of this probability",
            {.most = 1, .above = 0});
  table.add("--top-k", &o.top_k, "keep the k most likely tokens; 0 keeps all", {.least = 0});
  table.add("--min-p", &o.min_p, "keep tokens of this share of the best one's probability",
            {.least = 0, .most = 1});
  table.add("--seed", &o.seed, "of the random numbers; prompt i takes seed + i", {.least = 0});
  table.add("--ignore-eos", &o.ignore_eos, "go on after the model's end token");
  table.add("--stop", &o.stop, "end where this text appears (repeatable)");
  table.add("--logprobs", &o.logprobs, "report the K best tokens of every step; 0 reports none",
            {.least = 0, .most = 1000, .metavar = "K"});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Engine");
  table.add("--max-num-seqs", &o.max_num_seqs, "most sequences of one step", {.least = 1});
  table.add("--max-num-batched-tokens", &o.max_num_batched_tokens, "most tokens of one step",
            {.least = 1});
  table.add("--enable-prefix-caching", &o.prefix_caching, "share the work of equal prefixes");
  add_memory_row(table, &o.memory_utilization);
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

struct Prompt {
  std::string name;
  std::vector<int32_t> ids;
};

// One value of a prompt file.
std::vector<int32_t> read_prompt(const OpenModel& open, const OrderedJson& value,
                                 const std::string& where) {
  if (value.is_string()) return open.encode_prompt(value.get<std::string>(), where);
  const auto refuse = [&](const OrderedJson& found) {
    throw Error({.what = "a prompt is a text, or an array of token ids of this model",
                 .where = where,
                 .value = dump_json(found),
                 .accepted = fmt::format("\"...\", or ids from 0 to {}", open.config().vocab - 1)});
  };
  if (!value.is_array()) refuse(value);
  if (value.empty()) {
    throw Error({.what = "the prompt has no tokens",
                 .where = where,
                 .value = "[]",
                 .accepted = "one token id or more"});
  }
  std::vector<int32_t> ids;
  for (const OrderedJson& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= open.config().vocab) {
      refuse(id);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<Prompt> read_prompts(const GenerateOptions& o, const OpenModel& open) {
  if (o.prompt.has_value() == !o.prompt_file.empty()) {
    throw Error({.what = "one of --prompt and --prompt-file is needed",
                 .value = o.prompt ? "both" : "neither",
                 .accepted = "one of the two"});
  }
  if (o.prompt) return {{"prompt", open.encode_prompt(*o.prompt, "--prompt")}};
  const auto json = parse_json_file<OrderedJson>(o.prompt_file);
  if (!json.is_object() && !json.is_array()) {
    throw Error({.what = "a prompt file is an object of name -> prompt, or an array of prompts",
                 .where = o.prompt_file,
                 .value = json.type_name(),
                 .accepted = R"({"name": "text"} or ["text", [1, 2, 3]])"});
  }
  std::vector<Prompt> prompts;
  for (const auto& [key, value] : json.items()) {
    prompts.push_back({key, read_prompt(open, value, fmt::format("{}, {}", o.prompt_file, key))});
  }
  if (prompts.empty())
    throw Error({.what = "no prompts", .where = o.prompt_file, .accepted = "one prompt or more"});
  return prompts;
}

// One prompt's completion as it grows.
struct Completion {
  explicit Completion(const OpenModel& open, const std::vector<std::string>& stops) : stop(stops) {
    if (open.has_tokenizer()) detokenizer.emplace(open.tokenizer());
  }

  uint64_t id = 0;
  std::vector<engine::SampledToken> tokens;
  std::string text;
  std::optional<sched::Finish> finish;
  bool stopped = false;  // by a stop string
  std::optional<text::Detokenizer> detokenizer;
  text::StopMatcher stop;
};

class Generation {
 public:
  Generation(const GenerateOptions& o, const OpenModel& open, const std::vector<Prompt>& prompts)
      : o_(o), open_(open), prompts_(prompts), streams_(prints_text(o.json) && o.prompt) {
    for (size_t i = 0; i < prompts.size(); ++i) completions_.emplace_back(open, o.stop);
  }

  void run(engine::Engine& engine);
  OrderedJson json() const;
  void print_all() const;
  int64_t output_tokens() const;

 private:
  struct Event {
    size_t index = 0;
    engine::TokenEvent event;
  };
  engine::GenRequest request(size_t index) const;
  void accept(engine::Engine& engine, size_t index, const engine::TokenEvent& event);
  void show(Completion& completion, const std::string& text) const;

  const GenerateOptions& o_;
  const OpenModel& open_;
  const std::vector<Prompt>& prompts_;
  bool streams_;
  std::vector<Completion> completions_;
  Queue<Event> events_{1 << 16};  // outlives the engine, whose thread fills it
};

engine::GenRequest Generation::request(size_t index) const {
  engine::GenRequest request;
  request.prompt = prompts_[index].ids;
  request.max_tokens = o_.max_tokens;
  request.ignore_eos = o_.ignore_eos;
  request.sampling = {.temperature = o_.temperature,
                      .top_k = o_.top_k,
                      .top_p = o_.top_p,
                      .min_p = o_.min_p,
                      .seed = static_cast<uint64_t>(o_.seed) + index,
                      .logprobs = o_.logprobs > 0 ? o_.logprobs : -1};
  return request;
}

void Generation::show(Completion& completion, const std::string& text) const {
  completion.text += text;
  if (streams_ && !text.empty()) print(text);
}

void Generation::accept(engine::Engine& engine, size_t index, const engine::TokenEvent& event) {
  if (!event.fault.empty()) engine.rethrow_fault();
  if (!event.error.empty()) throw Error({.what = event.error});
  Completion& completion = completions_[index];
  for (const engine::SampledToken& token : event.tokens) {
    if (completion.stopped) break;
    completion.tokens.push_back(token);
    if (event.stop_token == token.token || !completion.detokenizer) continue;
    const auto result = completion.stop.push(completion.detokenizer->push(token.token));
    show(completion, result.text);
    if (result.stopped) {
      completion.stopped = true;
      completion.tokens.resize(static_cast<size_t>(result.kept_tokens));
      engine.finish_at(completion.id, result.kept_tokens);
    }
  }
  if (!event.finish) return;
  completion.finish = event.finish;
  if (!completion.stopped && completion.detokenizer) {
    const auto rest = completion.stop.flush(completion.detokenizer->flush());
    show(completion, rest.text);
    completion.stopped = rest.stopped;
  }
  if (completion.stopped) completion.finish = sched::Finish::stop;
}

void Generation::run(engine::Engine& engine) {
  // Whatever happens here, the engine thread must not wait for room.
  const std::unique_ptr<Queue<Event>, void (*)(Queue<Event>*)> closer(
      &events_, [](Queue<Event>* queue) { queue->close(); });
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const auto sink = [this, i](engine::TokenEvent event) { events_.push({i, std::move(event)}); };
    const engine::Submitted submitted = engine.submit(request(i), sink);
    invariant(!submitted.overloaded, "the engine's queue was made for all prompts");
    if (!submitted.unavailable.empty()) engine.rethrow_fault();
    if (!submitted.accepted()) {
      throw Error({.what = submitted.admission.message(),
                   .where = fmt::format("prompt '{}'", prompts_[i].name),
                   .fix = "shorten the prompt, or lower --max-tokens"});
    }
    completions_[i].id = submitted.id;
  }
  Progress progress("generate", static_cast<int64_t>(streams_ ? 0 : prompts_.size()));
  for (size_t open = prompts_.size(); open > 0;) {
    const std::optional<Event> next = events_.pop();
    invariant(next.has_value(), "nobody closes the queue of events");
    accept(engine, next->index, next->event);
    if (!next->event.finish) continue;
    --open;
    if (!streams_) progress.advance(1);
  }
  if (streams_) print("\n");
}

int64_t Generation::output_tokens() const {
  int64_t count = 0;
  for (const Completion& completion : completions_) {
    count += static_cast<int64_t>(completion.tokens.size());
  }
  return count;
}

OrderedJson Generation::json() const {
  OrderedJson all = OrderedJson::array();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const Completion& completion = completions_[i];
    OrderedJson one;
    one["name"] = prompts_[i].name;
    one["prompt_ids"] = prompts_[i].ids;
    OrderedJson ids = OrderedJson::array(), chosen = OrderedJson::array();
    OrderedJson best = OrderedJson::array();
    for (const engine::SampledToken& token : completion.tokens) {
      ids.push_back(token.token);
      chosen.push_back(token.logprob);
      OrderedJson step = OrderedJson::array();
      for (const auto& [id, logprob] : token.top)
        step.push_back({{"token", id}, {"logprob", logprob}});
      best.push_back(std::move(step));
    }
    one["token_ids"] = std::move(ids);
    one["text"] = completion.text;
    one["finish_reason"] = sched::to_string(*completion.finish);
    if (o_.logprobs > 0) {
      one["token_logprobs"] = std::move(chosen);
      one["logprobs"] = std::move(best);
    }
    all.push_back(std::move(one));
  }
  return all;
}

void Generation::print_all() const {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    std::string text = completions_[i].text;
    if (!open_.has_tokenizer()) {
      for (const engine::SampledToken& token : completions_[i].tokens) {
        text += fmt::format("{}{}", text.empty() ? "" : " ", token.token);
      }
    }
    print(fmt::format("== {}\n{}\n", prompts_[i].name, text));
  }
}

engine::EngineOptions engine_options(const GenerateOptions& o, const OpenModel& open,
                                     const std::vector<Prompt>& prompts) {
  engine::EngineOptions options;
  int64_t longest = 1;
  for (const Prompt& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()) + o.max_tokens);
  }
  // No memory for longer sequences than there are; a prompt that is too long is refused below.
  options.max_model_len = std::min(longest, open.max_model_len());
  options.max_num_seqs = std::min(o.max_num_seqs, static_cast<int>(prompts.size()));
  options.max_num_batched_tokens = std::max(
      static_cast<int>(std::min<int64_t>(o.max_num_batched_tokens, longest * options.max_num_seqs)),
      options.max_num_seqs);
  options.max_logprobs = o.logprobs;
  options.max_queued_requests = std::max(1024, static_cast<int>(prompts.size()));
  options.enable_prefix_caching = o.prefix_caching;
  options.kv_type = open.kv_type();
  options.unit_kv_scale = open.unit_kv_scale();
  options.memory_utilization = o.memory_utilization;
  return options;
}

// What the engine would refuse, said before the weights are loaded.
void check_lengths(const std::vector<Prompt>& prompts, int64_t max_tokens, int64_t limit) {
  for (const Prompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    const std::string where = fmt::format("prompt '{}'", prompt.name);
    if (length == 0) {
      throw Error(
          {.what = "the prompt has no tokens",
           .where = where,
           .fix = "its tokenizer puts no begin-of-text token before it: give it some text"});
    }
    if (length + max_tokens > limit) {
      throw Error({.what = length >= limit ? "the prompt is longer than the model allows"
                                           : "the prompt leaves too little room for --max-tokens",
                   .where = where,
                   .value = fmt::format("{} prompt tokens + {} output tokens", length, max_tokens),
                   .accepted = fmt::format("together at most {}", limit)});
    }
  }
}

}  // namespace

int run_generate(Args args) {
  GenerateOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  OpenModel open(o.model);
  if (!o.stop.empty() && !open.has_tokenizer()) {
    throw Error({.what = "the model has no tokenizer, so no text can stop it",
                 .where = "--stop",
                 .value = o.stop[0],
                 .fix = "leave --stop out, or put tokenizer.json beside the weights"});
  }
  const std::vector<Prompt> prompts = read_prompts(o, open);
  check_lengths(prompts, o.max_tokens, open.max_model_len());
  const auto backend = open_backend(o.backend);
  const engine::EngineOptions options = engine_options(o, open, prompts);
  const model::Model& model = open.load(*backend, options.max_model_len);

  Generation generation(o, open, prompts);
  const auto start = std::chrono::steady_clock::now();
  {
    engine::Engine engine(model, *backend, options);
    generation.run(engine);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  write_json(o.json, generation.json());
  if (!o.prompt && prints_text(o.json)) generation.print_all();
  log::debug("{} tokens in {:.2f} s, {:.1f} tokens/s on {}", generation.output_tokens(),
             took.count(), static_cast<double>(generation.output_tokens()) / took.count(),
             backend->info().name);
  return 0;
}

}  // namespace octet::cli
