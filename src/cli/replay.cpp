// octet replay LOG MODEL: computes requests of a server's log again, and says whether the same
// tokens come out; with --baseline, where another model would have gone another way.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "cli/fingerprint.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/request_log.h"
#include "cli/verbs.h"
#include "eval/evaluate.h"

namespace octet::cli {
namespace {

struct ReplayOptions {
  std::string log, id, json;
  ModelOptions model, baseline;
  BackendOptions backend;
  int64_t show = 8;
};

OptionTable table_of(ReplayOptions& o) {
  OptionTable table("octet replay",
                    "Compute requests of a server's log again, and compare bit for bit.");
  table.positional("LOG", &o.log, "the file of octet serve --request-log");
  table.positional("MODEL", &o.model.path, "the model that was served, with the same options");
  table.group("Requests");
  table.add("--id", &o.id, "only this request");
  table.add("--baseline", &o.baseline.path,
            "a model to compare with, token by token, along the logged output",
            {.metavar = "MODEL"});
  table.add("--show", &o.show, "places with the largest divergence to print", {.least = 0});
  add_model_rows(table, o.model);
  add_model_rows(table, o.baseline, "baseline-");
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

// One choice, computed again.
struct Replayed {
  const LoggedRequest* request = nullptr;
  const LoggedChoice* choice = nullptr;
  std::vector<int32_t> output;
  bool equal() const { return output == choice->output; }
  // The first place at which the two differ.
  size_t first_difference() const {
    const auto [ours, theirs] = std::ranges::mismatch(output, choice->output);
    return static_cast<size_t>(ours - output.begin());
  }
};

void require_tokens(std::span<const int32_t> ids, int64_t vocab, const std::string& where) {
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= vocab; });
  if (bad == ids.end()) return;
  throw Error({.what = "a logged request has a token that the model does not know",
               .where = where,
               .value = fmt::format("{}", *bad),
               .accepted = fmt::format("tokens 0 to {}", vocab - 1),
               .fix = "name the model that was served"});
}

// The longest sequence of them; Error if one has a token that the model does not know.
int64_t check(const std::vector<LoggedRequest>& requests, const OpenModel& open) {
  int64_t longest = 1;
  for (const LoggedRequest& request : requests) {
    for (const LoggedChoice& choice : request.choices) {
      const engine::GenRequest& asked = choice.request;
      for (const std::vector<int32_t>* ids :
           {&choice.prompt, &choice.output, &asked.stop_ids, &asked.sampling.allowed}) {
        require_tokens(*ids, open.config().vocab, request.where);
      }
      for (const std::vector<int32_t>& ids : asked.sampling.bad_words) {
        require_tokens(ids, open.config().vocab, request.where);
      }
      for (const auto& [id, bias] : asked.sampling.logit_bias) {
        require_tokens({&id, 1}, open.config().vocab, request.where);
      }
      longest =
          std::max(longest, static_cast<int64_t>(choice.prompt.size() + choice.output.size()));
    }
  }
  if (longest <= open.max_model_len()) return longest;
  throw Error({.what = "a logged request is longer than the model allows",
               .where = requests.front().where,
               .value = fmt::format("{} tokens", longest),
               .accepted = fmt::format("at most {}", open.max_model_len()),
               .fix = "give the options that the server had (--max-model-len, --rope-scaling)"});
}

// Whether a request was answered by other weights than those that are here.
bool is_of_another(const std::vector<LoggedRequest>& requests, const ModelOptions& here) {
  const std::string hash = identity_of(here);
  return std::ranges::any_of(requests, [&](const LoggedRequest& request) {
    return !request.model_hash.empty() && request.model_hash != hash;
  });
}

std::vector<int32_t> run_one(engine::Engine& engine, const LoggedRequest& request,
                             const LoggedChoice& choice) {
  engine::Collector collector;
  const engine::Submitted submitted = engine.submit(choice.request, collector.sink());
  if (!submitted.unavailable.empty()) engine.rethrow_fault();
  if (!submitted.accepted()) {
    throw Error({.what = submitted.admission.message(), .where = request.where});
  }
  std::vector<int32_t> output;
  while (const std::optional<engine::TokenEvent> event = collector.next()) {
    if (!event->fault.empty()) engine.rethrow_fault();
    if (!event->error.empty()) throw Error({.what = event->error, .where = request.where});
    for (const engine::SampledToken& token : event->tokens) output.push_back(token.token);
    if (event->finish) break;
  }
  return output;
}

std::vector<Replayed> run_all(engine::Engine& engine, const std::vector<LoggedRequest>& requests) {
  int64_t count = 0;
  for (const LoggedRequest& request : requests) {
    count += static_cast<int64_t>(request.choices.size());
  }
  Progress progress("replay", count);
  std::vector<Replayed> all;
  for (const LoggedRequest& request : requests) {
    for (const LoggedChoice& choice : request.choices) {
      progress.advance(1);
      // Nothing came out: there is nothing to compare.
      if (!request.not_replayable.empty() || choice.output.empty()) continue;
      all.push_back({&request, &choice, run_one(engine, request, choice)});
    }
  }
  return all;
}

std::string token_text(const OpenModel& open, int32_t id) {
  const std::string bytes = open.has_tokenizer() ? printable(open.tokenizer().token_bytes(id)) : "";
  return fmt::format("{} '{}'", id, bytes);
}

struct Diff {
  const Replayed* replayed;
  eval::Comparison comparison;
};

std::string text_of(const Diff& diff, const OpenModel& open, int64_t show) {
  const std::vector<eval::ScoredToken>& scored = diff.comparison.scored;
  const auto other = std::ranges::find_if(
      scored, [](const eval::ScoredToken& s) { return s.best != s.baseline_best; });
  std::string text = fmt::format("  against the baseline: mean KL {:.4g}, most {:.4g} nats\n",
                                 diff.comparison.kl_mean, diff.comparison.kl.back());
  text += other == scored.end()
              ? "  the most likely token is the same at every place\n"
              : fmt::format("  first other most likely token at {}: {}, the baseline's is {}\n",
                            other - scored.begin(), token_text(open, other->best),
                            token_text(open, other->baseline_best));
  std::vector<size_t> order(scored.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return scored[i].kl; });
  order.resize(std::min(order.size(), static_cast<size_t>(show)));
  for (const size_t i : order) {
    text +=
        fmt::format("  place {:>5}  KL {:<10.4g}  {}  log-probability {:.4f}, baseline {:.4f}\n", i,
                    scored[i].kl, token_text(open, scored[i].token), scored[i].logprob,
                    scored[i].baseline_logprob);
  }
  return text;
}

OrderedJson json_of(const Replayed& replayed, const Diff* diff) {
  OrderedJson json = {{"id", replayed.request->id},  {"index", replayed.choice->index},
                      {"equal", replayed.equal()},   {"tokens", replayed.choice->output.size()},
                      {"first_difference", nullptr}, {"output_ids", replayed.output}};
  if (!replayed.equal()) json["first_difference"] = replayed.first_difference();
  if (diff == nullptr) return json;
  OrderedJson places = OrderedJson::array();
  for (const eval::ScoredToken& s : diff->comparison.scored) {
    places.push_back({{"token", s.token},
                      {"kl", s.kl},
                      {"logprob", s.logprob},
                      {"baseline_logprob", s.baseline_logprob},
                      {"best", s.best},
                      {"baseline_best", s.baseline_best}});
  }
  json["baseline"] = {{"kl_mean", diff->comparison.kl_mean}, {"places", places}};
  return json;
}

std::string verdict(const Replayed& replayed, const OpenModel& open) {
  const std::string name =
      fmt::format("{} choice {}", printable(replayed.request->id), replayed.choice->index);
  if (replayed.equal()) {
    return fmt::format("{}: equal, {} tokens\n", name, replayed.output.size());
  }
  const size_t at = replayed.first_difference();
  const auto token = [&](const std::vector<int32_t>& ids) {
    return at < ids.size() ? token_text(open, ids[at]) : std::string("the end");
  };
  return fmt::format("{}: DIFFERENT at token {}: now {}, then {}\n", name, at,
                     token(replayed.output), token(replayed.choice->output));
}

eval::Subject subject(const OpenModel& open, ops::Backend& backend) {
  return {open.model(), backend, open.kv_type(), open.unit_kv_scale()};
}

// Along the logged output, whatever came out now.
std::vector<Diff> diff_all(const std::vector<Replayed>& all, const OpenModel& open,
                           const OpenModel& baseline, ops::Backend& backend) {
  std::vector<Diff> diffs;
  for (const Replayed& replayed : all) {
    eval::Piece piece{replayed.choice->prompt,
                      static_cast<int64_t>(replayed.choice->prompt.size())};
    piece.tokens.insert(piece.tokens.end(), replayed.choice->output.begin(),
                        replayed.choice->output.end());
    diffs.push_back({&replayed, eval::compare(subject(open, backend), subject(baseline, backend),
                                              {&piece, 1})});
  }
  return diffs;
}

}  // namespace

int run_replay(Args args) {
  ReplayOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  const std::vector<LoggedRequest> requests = read_request_log(o.log, o.id);
  OpenModel open(o.model);
  const bool other_model = is_of_another(requests, o.model);
  const int64_t longest = check(requests, open);
  const auto backend = open_backend(o.backend);
  const model::Model& model = open.load(*backend, longest);
  std::vector<Replayed> all;
  {
    engine::Engine engine(model, *backend,
                          {.max_model_len = longest,
                           .max_num_seqs = 1,
                           .kv_type = open.kv_type(),
                           .unit_kv_scale = open.unit_kv_scale()});
    all = run_all(engine, requests);
  }
  std::vector<Diff> diffs;
  if (!o.baseline.path.empty() && !all.empty()) {
    OpenModel baseline(o.baseline);
    baseline.load(*backend, longest);
    diffs = diff_all(all, open, baseline, *backend);
  }
  int64_t equal = 0;
  std::string text;
  OrderedJson replays = OrderedJson::array(), skipped = OrderedJson::array();
  for (size_t i = 0; i < all.size(); ++i) {
    equal += all[i].equal() ? 1 : 0;
    text += verdict(all[i], open);
    if (!diffs.empty()) text += text_of(diffs[i], open, o.show);
    replays.push_back(json_of(all[i], diffs.empty() ? nullptr : &diffs[i]));
  }
  for (const LoggedRequest& request : requests) {
    if (request.not_replayable.empty()) continue;
    text += fmt::format("{}: not computed again, since {}\n", printable(request.id),
                        request.not_replayable);
    skipped.push_back({{"id", request.id}, {"why", request.not_replayable}});
  }
  if (other_model) {
    text += fmt::format(
        "the log is of another model than {}: its weights, configuration or tokenizer differ\n",
        printable(o.model.path));
  }
  if (prints_text(o.json)) print(text + fmt::format("{} of {} equal\n", equal, all.size()));
  write_json(o.json, {{"replayed", all.size()},
                      {"equal", equal},
                      {"other_model", other_model},
                      {"replays", replays},
                      {"skipped", skipped}});
  return equal == static_cast<int64_t>(all.size()) ? 0 : 1;
}

}  // namespace octet::cli
