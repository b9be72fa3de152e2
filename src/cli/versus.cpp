// octet versus LEFT [RIGHT]: two servers, or models, on the same prompts: speed and fidelity.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "cli/local_server.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/target_server.h"
#include "cli/verbs.h"
#include "load/fidelity.h"
#include "load/statistics.h"

namespace octet::cli {
namespace {

struct SideOptions {
  std::string place;  // an address or a model
  std::string model, api_key;
  std::vector<std::string> serve_args;
};

struct VersusOptions {
  SideOptions left, right{.place = "http://127.0.0.1:8000"};
  std::string prompts, json;
  int64_t count = 32, output_len = 32, top = 5;
  double timeout_s = 600;
};

void add_side_rows(OptionTable& table, const std::string& name, SideOptions& o) {
  table.add("--" + name + "-model", &o.model, "name of its model; the first it lists if not given");
  table.add("--" + name + "-api-key", &o.api_key, "its key");
  table.add("--" + name + "-serve-arg", &o.serve_args,
            "an option for octet serve, if it is a model: --" + name +
                "-serve-arg=--compute=fp8 (repeatable)");
}

OptionTable table_of(VersusOptions& o) {
  OptionTable table("octet versus",
                    "Two OpenAI-compatible servers on the same prompts: speed and fidelity.");
  table.positional("LEFT", &o.left.place, "http://HOST:PORT, or a model that is served for this");
  table.positional("RIGHT", &o.right.place, "the same; http://127.0.0.1:8000 if not given", true);
  table.group("Prompts");
  table.add("--dataset-path", &o.prompts,
            "a JSON object with `prompt` a line; some lines of code and prose if not given",
            {.metavar = "FILE"});
  table.add("--num-prompts", &o.count, "prompts", {.least = 1, .most = 1 << 20});
  table.add("--output-len", &o.output_len, "greedy tokens of each answer",
            {.least = 1, .most = 1 << 20});
  table.add("--logprobs", &o.top, "best tokens to compare at each place",
            {.least = 1, .most = 100});
  table.group("Sides");
  add_side_rows(table, "left", o.left);
  add_side_rows(table, "right", o.right);
  table.add("--request-timeout", &o.timeout_s, "seconds that one request may take", {.above = 0});
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

constexpr const char* kPrompts[] = {
    "def fibonacci(n):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\ndef walk(",
    "The most important thing about a good test is",
    "# Installation\n\n",
    "for i in range(10):\n    ",
    "SELECT name FROM users WHERE ",
    "Once upon a time there was a",
    "The capital of France is",
    "#include <vector>\n\nint main() {\n",
    "To sort a list in place,",
    "def add(a, b):\n    \"\"\"",
    "The server answers with",
    "if __name__ == \"__main__\":\n",
    "A queue is",
    "x = [1, 2, 3]\n",
};

std::vector<load::LoadRequest> read_prompts(const VersusOptions& o) {
  std::vector<load::LoadRequest> requests;
  if (!o.prompts.empty()) {
    return load::jsonl_requests(
        {.path = o.prompts, .count = o.count, .output_len = o.output_len, .repeat = false}, {});
  }
  for (const char* text : kPrompts) {
    if (requests.size() == static_cast<size_t>(o.count)) break;
    load::LoadRequest request;
    request.prompt = std::string(text);
    request.output_tokens = o.output_len;
    requests.push_back(std::move(request));
  }
  return requests;
}

// One of the two.
struct Side {
  std::string name;  // as the user named it
  std::unique_ptr<LocalServer> local;
  load::Driver driver;
  load::RunResult runs;
  std::vector<std::vector<load::Place>> answers;
};

Side open_side(const SideOptions& o, double timeout_s, const HeldSignals& signals) {
  ServerOptions server{.model = o.model, .api_key = o.api_key, .timeout_s = timeout_s};
  std::unique_ptr<LocalServer> local;
  server.base_url = o.place;
  if (o.place.find("://") == o.place.npos) {
    local = std::make_unique<LocalServer>(o.place, o.serve_args, signals);
    server.base_url = local->url();
  } else if (!o.serve_args.empty()) {
    throw Error({.what = "a server that runs already takes no options",
                 .where = "--left-serve-arg, --right-serve-arg",
                 .value = o.place,
                 .accepted = "a model directory in place of the address"});
  }
  load::BodyOptions body;
  body.sampling["temperature"] = 0;
  const auto stop = [&signals] { return signals.pending(); };
  return {o.place, std::move(local), open_server(server, body, stop), {}, {}};
}

// A whole answer with log-probabilities.
std::vector<load::Place> ask_places(Side& side, const load::LoadRequest& request,
                                    const VersusOptions& o) {
  OrderedJson body = OrderedJson::parse(load::request_body(request, side.driver.target().body));
  body.erase("stream");
  body.erase("stream_options");
  body["logprobs"] = o.top;
  const load::Driver::Plain got = side.driver.call("/v1/completions", dump_json(body), o.timeout_s);
  if (side.driver.stopped()) return {};
  if (got.answer.failure != load::Failure::none || got.answer.status != 200) {
    throw Error({.what = "a request for log-probabilities failed",
                 .where = side.name,
                 .value = got.answer.failure != load::Failure::none
                              ? got.answer.message
                              : fmt::format("HTTP {}: {}", got.answer.status,
                                            load::error_message(got.body)),
                 .fix = "lower --logprobs, if the server does not report so many"});
  }
  return load::places_of(Json::parse(got.body, nullptr, false));
}

// Each prompt goes to both before the next, in turns first to the one and to the other, so that
// what else the machines do meets both alike.
// A signal ends it, with what was compared so far.
void run_pairs(Side& left, Side& right, const std::vector<load::LoadRequest>& requests,
               const VersusOptions& o) {
  Side* sides[] = {&left, &right};
  load::Live live("versus", static_cast<int64_t>(requests.size()));
  for (Side* side : sides) {  // connections, caches and graphs of the first request
    const load::Outcome first = side->driver.run_one(requests.front());
    if (first.ok()) continue;
    throw Error({.what = "the server does not answer a first request",
                 .where = side->name,
                 .value = fmt::format("{}: {}", name_of(first.failure), first.message)});
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    live.sent();
    load::Outcome outcomes[2];
    std::vector<load::Place> answers[2];
    for (size_t turn = 0; turn < 2; ++turn) {
      const size_t which = (i + turn) % 2;
      outcomes[which] = sides[which]->driver.run_one(requests[i]);
      if (sides[which]->driver.stopped()) return;
      answers[which] = ask_places(*sides[which], requests[i], o);
      if (sides[which]->driver.stopped()) return;
    }
    for (size_t which = 0; which < 2; ++which) {
      sides[which]->runs.outcomes.push_back(std::move(outcomes[which]));
      sides[which]->answers.push_back(std::move(answers[which]));
    }
    live.ended(left.runs.outcomes.back().ok() && right.runs.outcomes.back().ok());
    live.draw();
  }
}

double mean_of(const std::vector<double>& values) {
  return load::Distribution(values).mean;
}

// The middle of right / left over the prompts that both answered.
double median_ratio(const Side& left, const Side& right,
                    double (*value)(const load::Outcome& outcome)) {
  std::vector<double> ratios;
  for (size_t i = 0; i < left.runs.outcomes.size(); ++i) {
    const load::Outcome &a = left.runs.outcomes[i], &b = right.runs.outcomes[i];
    if (a.ok() && b.ok() && value(a) > 0) ratios.push_back(value(b) / value(a));
  }
  return load::Distribution(ratios).median();
}

struct Ratios {
  double ttft = 0, tpot = 0, e2el = 0;
};
Ratios ratios_of(const Side& left, const Side& right) {
  return {median_ratio(left, right, [](const load::Outcome& o) { return o.ttft; }),
          median_ratio(left, right, [](const load::Outcome& o) { return o.tpot(); }),
          median_ratio(left, right, [](const load::Outcome& o) { return o.latency; })};
}

constexpr const char* kRule =
    "KL(left || right) at each place, in nats, of the tokens that both report among their best and "
    "of all others as one; the true divergence is at least as large. Greedy answers are compared "
    "up "
    "to and including the first token in which they differ";

OrderedJson json_of_side(const Side& side) {
  const load::Statistics s = load::statistics_of(side.runs);
  OrderedJson json = {{"name", side.name}, {"model_id", side.driver.target().body.model}};
  json["completed"] = s.completed;
  json["failed"] = s.failed;
  json["total_output_tokens"] = s.output_tokens;
  for (const auto& [name, values] :
       {std::pair{"ttft", &s.ttft}, {"tpot", &s.tpot}, {"e2el", &s.e2el}}) {
    json[fmt::format("median_{}_ms", name)] = values->median() * 1e3;
    json[fmt::format("p95_{}_ms", name)] = values->at(95) * 1e3;
  }
  return json;
}

OrderedJson json_of_fidelity(const load::Fidelity& f) {
  const load::Distribution kl(f.kl);
  OrderedJson json = {{"rule", kRule},
                      {"answers", f.answers},
                      {"same_answers", f.same_answers},
                      {"places", f.places},
                      {"same_tokens", f.same_tokens},
                      {"kl_mean", kl.mean},
                      {"kl_median", kl.median()},
                      {"kl_p99", kl.at(99)},
                      {"kl_max", kl.at(100)},
                      {"mean_covered_probability", f.covered},
                      {"mean_logprob_difference", mean_of(f.difference)},
                      {"splits", OrderedJson::array()}};
  for (const load::Fidelity::Split& split : f.splits) {
    json["splits"].push_back({{"prompt", split.answer},
                              {"place", split.place},
                              {"left", split.left},
                              {"right", split.right}});
  }
  return json;
}

void print_report(const Side& left, const Side& right, const load::Fidelity& f) {
  const load::Statistics a = load::statistics_of(left.runs), b = load::statistics_of(right.runs);
  const Ratios ratios = ratios_of(left, right);
  std::string text = fmt::format("left   {} ({})\nright  {} ({})\n\n{:<22}{:>12}{:>12}{:>16}\n",
                                 printable(left.name), printable(left.driver.target().body.model),
                                 printable(right.name), printable(right.driver.target().body.model),
                                 "speed", "left", "right", "right / left");
  const auto row = [&](const char* name, const load::Distribution& x, const load::Distribution& y,
                       double ratio) {
    text += fmt::format("{:<22}{:>9} ms{:>9} ms{:>16}\n", name, load::figure(x.median() * 1e3, 2),
                        load::figure(y.median() * 1e3, 2), load::figure(ratio, 3));
  };
  row("TTFT, median", a.ttft, b.ttft, ratios.ttft);
  row("TPOT, median", a.tpot, b.tpot, ratios.tpot);
  row("end to end, median", a.e2el, b.e2el, ratios.e2el);
  text += fmt::format("{:<22}{:>12}{:>12}\n\n", "answered", a.completed, b.completed);
  if (f.places == 0) {
    text += "fidelity: not measured, since a side reports no log-probabilities\n";
  } else {
    const load::Distribution kl(f.kl);
    text += fmt::format(
        "fidelity over {} tokens of {} greedy answers\n"
        "  same token                {} of {}\n  same answer               {} of {}\n"
        "  KL, mean, P99, most       {:.3g}, {:.3g}, {:.3g} nats\n"
        "  log-probability, mean |d| {:.3g}\n"
        "  covered probability       {:.4f}\n  {}.\n",
        f.places, f.answers, f.same_tokens, f.places, f.same_answers, f.answers, kl.mean, kl.at(99),
        kl.at(100), mean_of(f.difference), f.covered, kRule);
  }
  for (const Side* side : {&left, &right}) {
    const std::string failures = load::failure_text(side->runs);
    if (!failures.empty()) text += printable(side->name + ": " + failures) + "\n";
  }
  print(text);
}

int compare(const VersusOptions& o, const HeldSignals& signals) {
  const std::vector<load::LoadRequest> requests = read_prompts(o);
  Side left = open_side(o.left, o.timeout_s, signals);
  Side right = open_side(o.right, o.timeout_s, signals);
  run_pairs(left, right, requests, o);
  load::Fidelity fidelity;
  for (size_t i = 0; i < left.answers.size(); ++i) {
    if (left.answers[i].empty() || right.answers[i].empty()) continue;
    load::compare_answers(left.answers[i], right.answers[i], fidelity);
  }
  if (prints_text(o.json)) print_report(left, right, fidelity);
  const Ratios ratios = ratios_of(left, right);
  write_json(o.json, {{"interrupted", signals.pending()},
                      {"left", json_of_side(left)},
                      {"right", json_of_side(right)},
                      {"median_ratio_right_to_left",
                       {{"ttft", ratios.ttft}, {"tpot", ratios.tpot}, {"e2el", ratios.e2el}}},
                      {"fidelity", json_of_fidelity(fidelity)}});
  const bool all =
      load::statistics_of(left.runs).failed == 0 && load::statistics_of(right.runs).failed == 0;
  return all ? 0 : 1;
}

}  // namespace

int run_versus(Args args) {
  VersusOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  const HeldSignals signals;
  try {
    const int code = compare(o, signals);
    signals.check();  // what was compared until it came has been reported
    return code;
  } catch (const Error&) {
    signals.check();  // which may be why
    throw;
  }
}

}  // namespace octet::cli
