#include "cli/quantize_auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/atomic_write.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/output.h"
#include "cli/watched_work.h"
#include "model/identity.h"
#include "offline/mixed_checkpoint.h"

namespace octet::cli {
namespace {

using offline::Candidate;
using offline::Modules;

struct Budget {
  std::optional<double> kl;
  std::optional<int64_t> bytes;  // of all tensors
};

Budget parse_budget(const std::string& text) {
  const auto fail = [&] {
    throw Error({.what = "a budget is a divergence or a size",
                 .where = "--budget",
                 .value = text,
                 .accepted = "kl=0.01 (nats a token, above 0), or bytes=25e6 (of all tensors)"});
  };
  const size_t equals = text.find('=');
  if (equals == text.npos) fail();
  const std::string name = text.substr(0, equals), number = text.substr(equals + 1);
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !std::isfinite(value) || value <= 0) fail();
  if (name == "kl") return {.kl = value};
  if (name == "bytes" && value < 1e18) return {.bytes = static_cast<int64_t>(value)};
  fail();
  return {};
}

// Error unless all in FP8 fits into a budget of bytes.
void require_fits(const Budget& budget, int64_t least) {
  if (!budget.bytes || *budget.bytes >= least) return;
  throw Error({.what = "the checkpoint does not fit into the budget with all linears in FP8",
               .where = "--budget",
               .value = fmt::format("bytes={}", *budget.bytes),
               .accepted = fmt::format("bytes={} or more", least)});
}

// The linears of `modules`, which the family and the policy made FP8, as candidates: what engines
// run as one belongs together, and costs what its parts cost. A part by layer or role spreads its
// cost over what it holds, by bytes.
std::vector<Candidate> candidates_of(const Sensitivity& sensitivity, const std::string& file,
                                     const OpenModel& open, const offline::MixedCheckpoint& mixed) {
  struct PartCost {
    const MeasuredPart* part = nullptr;
    int64_t bytes = 0;
  };
  const auto by = eval::parse_part_by(sensitivity.options.by);
  std::map<std::string, PartCost, std::less<>> parts;
  for (const MeasuredPart& measured : sensitivity.parts) {
    if (measured.part.kind != eval::Part::Kind::linear) continue;
    parts[measured.part.pattern].part = &measured;
  }
  const auto part_of = [&](const model::LinearUse& use) -> PartCost& {
    const auto found = parts.find(eval::pattern_of(use, by));
    if (found != parts.end()) return found->second;
    throw Error({.what = "the sensitivities lack a linear of the model",
                 .where = fmt::format("{}, $.parts", file),
                 .value = use.linear->name,
                 .fix = "run `octet eval sensitivity` on this model again"});
  };
  std::vector<model::LinearUse> uses = open.model().linears();
  std::erase_if(uses, [&](const model::LinearUse& use) {
    return !mixed.modules().contains(use.linear->name);
  });
  for (const model::LinearUse& use : uses) {
    part_of(use).bytes += mixed.modules().at(use.linear->name).high;
  }
  std::vector<Candidate> candidates;
  std::map<std::string, size_t> places;
  for (const model::LinearUse& use : uses) {
    const std::string& module = use.linear->name;
    const std::string name = offline::fused_name(module);
    const auto [place, fresh] = places.emplace(name, candidates.size());
    if (fresh) candidates.push_back({.name = name});
    Candidate& candidate = candidates[place->second];
    const offline::MixedCheckpoint::Sizes sizes = mixed.modules().at(module);
    const PartCost& part = part_of(use);
    candidate.modules.push_back(module);
    candidate.bytes += sizes.high;
    candidate.bytes_low += sizes.low;
    candidate.cost += sensitivity.cost(*part.part) * static_cast<double>(sizes.high) /
                      static_cast<double>(part.bytes);
  }
  return candidates;
}

// The candidates whose inputs stay in 16 bits: those whose FP8 costs most for each byte of their
// weights, which says how much arithmetic they are. What FP8 costs a candidate is the less by it.
std::vector<size_t> leave_inputs(const std::vector<Candidate>& by_input, double most,
                                 std::vector<Candidate>& candidates) {
  std::vector<size_t> left = offline::keeping_order(by_input, {.most_kept = most});
  for (const size_t i : left) candidates[i].cost -= by_input[i].cost;
  return left;
}

Modules modules_of(std::span<const Candidate> candidates, std::span<const size_t> kept) {
  Modules modules;
  for (const size_t i : kept) {
    modules.insert(candidates[i].modules.begin(), candidates[i].modules.end());
  }
  return modules;
}

// Runs choices of what is kept, in the arithmetic that the checkpoint records, beside the source in
// FP32.
class Judge {
 public:
  Judge(const offline::MixedCheckpoint& mixed, const OpenModel& open, ops::Backend& backend,
        std::span<const eval::Piece> pieces, ThreadPool& threads)
      : mixed_(mixed),
        backend_(backend),
        pieces_(pieces),
        reference_({open.model(), backend}, pieces, threads, advance()) {}

  double perplexity() const { return reference_.perplexity(); }

  eval::Fidelity operator()(const Modules& kept) {
    const model::ModelConfig config = mixed_.config(kept);
    const model::RecordedArithmetic& recorded = config.recorded;
    const std::string& named = recorded.kv_cache_dtype;
    const model::KvType cache = model::parse_kv_type(named.empty() ? "auto" : named);
    const bool fp8_cache = cache == model::KvType::automatic || model::is_fp8(cache);
    const auto model =
        model::load_model(config, mixed_.weights(kept), backend_,
                          {.compute = model::Compute::fp8,
                           .fp8_attention = recorded.attention != "bf16" && fp8_cache,
                           .max_positions = eval::longest(pieces_)});
    return reference_.measure({*model, backend_, cache}, advance());
  }

  // Of the source's logits and of each measurement; how many there will be is not known.
  eval::Advance advance() {
    return [this](int64_t tokens) { work_(done_ += tokens, 0); };
  }
  void end() { work_.end(); }

 private:
  const offline::MixedCheckpoint& mixed_;
  ops::Backend& backend_;
  std::span<const eval::Piece> pieces_;
  WatchedWork work_{"judge", Progress::Unit::tokens};
  int64_t done_ = 0;
  eval::Reference reference_;
};

// Of --sensitivity; Error if they are another model's.
Sensitivity given_sensitivity(const offline::QuantizeOptions& options, const AutoOptions& autos) {
  Sensitivity read = read_sensitivity(autos.sensitivity);
  const std::string hash = model::identity_of(options.source);
  if (read.model_hash == hash) return read;
  throw Error({.what = "these sensitivities are of another model",
               .where = fmt::format("{}, $.model_hash", autos.sensitivity),
               .value = fmt::format("of {}, hash {}", read.options.model, read.model_hash),
               .accepted = fmt::format("those of {}, hash {}", options.source, hash),
               .fix = "run `octet eval sensitivity` on this model"});
}

// Where those that are measured here are kept.
std::string kept_beside(const std::string& out) {
  namespace fs = std::filesystem;
  fs::path path(out);
  if (!path.has_filename()) path = path.parent_path();  // "out/"
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  return path.string() + ".sensitivity.jsonl";
}

Sensitivity sensitivity_for(const offline::QuantizeOptions& options, const std::string& scheme,
                            const AutoOptions& autos) {
  if (autos.sensitivity.empty()) {
    const std::string file = kept_beside(options.out);
    log::info(
        "sensitivities are kept in {}: the same command, or another budget, goes on with them",
        file);
    return measure_sensitivity(
        {.model = options.source, .scheme = scheme, .text = autos.text, .resume = file});
  }
  Sensitivity read = given_sensitivity(options, autos);
  if (read.options.scheme != scheme) {
    log::warning("the sensitivities were measured with {}, and {} is written: the order may differ",
                 read.options.scheme, scheme);
  }
  return read;
}

// What FP8 inputs alone cost the linears, where some may stay in 16 bits.
std::optional<Sensitivity> input_sensitivity(const offline::QuantizeOptions& options,
                                             const std::string& scheme, const AutoOptions& autos) {
  if (autos.min_fp8_input_share >= 1) return std::nullopt;
  return measure_sensitivity({.model = options.source,
                              .scheme = scheme,
                              .operand = "input",
                              .text = autos.text,
                              .resume = kept_beside(options.out)});
}

double share_of(int64_t bytes, const AutoResult& result) {
  return static_cast<double>(bytes) / static_cast<double>(result.linear_bytes);
}

}  // namespace

void add_auto_rows(OptionTable& table, AutoOptions& o) {
  table.group("Choice of precisions");
  table.add("--auto", &o.on,
            "keep linears in 16 bits whose FP8 costs most for each byte, as the budget says");
  table.add("--budget", &o.budget,
            "of --auto: kl=X keeps as few as bring the KL divergence to the source on --text to X; "
            "bytes=N keeps as many as fit into N bytes of tensors",
            {.metavar = "kl=X|bytes=N"});
  table.add("--sensitivity", &o.sensitivity,
            "of --auto: the result of `octet eval sensitivity --json`; without it that is measured "
            "first",
            {.metavar = "FILE"});
  add_drawn_text_rows(table, o.text, false);
  table.add("--min-fp8-share", &o.min_fp8_share,
            "of --auto with kl=X: least share of the linears' bytes that becomes FP8",
            {.least = 0, .most = 1});
  table.add("--min-fp8-input-share", &o.min_fp8_input_share,
            "of --auto: least share of the linears, by bytes, whose inputs become FP8; the others, "
            "those that FP8 inputs cost most, take them in 16 bits, which config.json records",
            {.least = 0, .most = 1});
}

void check_auto(const AutoOptions& o, const OptionTable& table) {
  const bool share_given =
      table.origin("--min-fp8-share") == "flag" || o.min_fp8_share != AutoOptions().min_fp8_share;
  if (o.on) {
    const Budget budget = parse_budget(o.budget);
    if (budget.bytes && share_given) {
      throw Error({.what = "a budget of bytes says itself how much becomes FP8",
                   .where = "--min-fp8-share",
                   .value = fmt::format("{} with --budget {}", o.min_fp8_share, o.budget),
                   .accepted = "together with --budget kl=X",
                   .fix = "leave one of the two out"});
    }
    if (!o.text.file.empty()) return;
    throw Error({.what = "--auto judges its choice on a text",
                 .where = "--text",
                 .value = "not given",
                 .fix = "give a text like what the model will see, and other than --calibration"});
  }
  // A file of --print-config has all values, those that say nothing among them.
  const auto given = [&](const char* flag, int64_t value, int64_t usual) {
    return table.origin(flag) == "flag" || value != usual;
  };
  const DrawnText usual;
  const std::pair<const char*, bool> flags[] = {
      {"--budget", !o.budget.empty()},
      {"--sensitivity", !o.sensitivity.empty()},
      {"--text", !o.text.file.empty()},
      {"--windows", given("--windows", o.text.windows, usual.windows)},
      {"--window", given("--window", o.text.window, usual.window)},
      {"--seed", given("--seed", o.text.seed, usual.seed)},
      {"--min-fp8-share", share_given},
      {"--min-fp8-input-share", table.origin("--min-fp8-input-share") == "flag" ||
                                    o.min_fp8_input_share != AutoOptions().min_fp8_input_share}};
  for (const auto& [flag, is_given] : flags) {
    if (!is_given) continue;
    throw Error({.what = "the flag says how to choose precisions, and they are not to be chosen",
                 .where = flag,
                 .accepted = "together with --auto",
                 .fix = "give --auto, or leave the flag out"});
  }
}

void check_auto_work(const offline::QuantizeOptions& options, const AutoOptions& autos) {
  draw_windows(autos.text, OpenModel({.path = options.source, .compute = "fp32"}));
  if (!autos.sensitivity.empty()) given_sensitivity(options, autos);
  const Budget budget = parse_budget(autos.budget);
  if (budget.bytes) require_fits(budget, offline::quantized_bytes(options));
  if (autos.min_fp8_input_share >= 1 || options.scheme.input) return;
  throw Error(
      {.what = "the scheme leaves all inputs in 16 bits",
       .where = "--min-fp8-input-share",
       .value = fmt::format("{} with {}", autos.min_fp8_input_share, to_string(options.scheme)),
       .accepted = "together with a scheme that quantizes inputs",
       .fix = "leave the flag out"});
}

AutoResult quantize_auto(const offline::QuantizeOptions& options, const std::string& scheme,
                         const AutoOptions& autos) {
  const Budget budget = parse_budget(autos.budget);
  OpenModel open({.path = options.source, .compute = "fp32"});
  const std::vector<eval::Piece> pieces = draw_windows(autos.text, open);
  const Sensitivity sensitivity = sensitivity_for(options, scheme, autos);
  const std::optional<Sensitivity> inputs = input_sensitivity(options, scheme, autos);

  AtomicDirectory directory(options.out,
                            options.overwrite ? Overwrite::replace : Overwrite::refuse);
  const std::filesystem::path all_fp8 = directory.path() / "all-fp8";
  offline::QuantizeOptions whole = options;
  whole.out = all_fp8.string();
  AutoResult result;
  {
    WatchedWork work("quantize");
    result.report = offline::quantize_checkpoint(whole, std::ref(work));
  }
  offline::MixedCheckpoint mixed(options.source, all_fp8.string());

  const auto backend = open_backend({});
  ThreadPool threads(default_thread_count());
  open.load(*backend, eval::longest(pieces));
  result.candidates = candidates_of(sensitivity, autos.sensitivity, open, mixed);
  offline::KeepBudget keep{.kl = budget.kl, .most_kept = 1 - autos.min_fp8_share};
  if (budget.bytes) {
    const int64_t least = mixed.bytes({});
    require_fits(budget, least);  // hot experts are known by now
    keep.extra = *budget.bytes - least;
  }
  Modules kept;
  {
    Judge judge(mixed, open, *backend, pieces, threads);
    result.perplexity = judge.perplexity();
    result.before = judge({});
    std::map<size_t, eval::Fidelity> measured;  // by how many are kept
    if (inputs && !(budget.kl && result.before.kl <= *budget.kl)) {
      result.weight_only = leave_inputs(candidates_of(*inputs, "", open, mixed),
                                        1 - autos.min_fp8_input_share, result.candidates);
      mixed.leave_inputs(modules_of(result.candidates, result.weight_only));
    } else {
      measured.emplace(0, result.before);
    }
    result.choice =
        offline::choose_kept(result.candidates, keep, [&](std::span<const size_t> some) {
          auto found = measured.find(some.size());
          if (found == measured.end()) {
            const Modules high = modules_of(result.candidates, some);
            found = measured.emplace(some.size(), judge(high)).first;
          }
          return found->second.kl;
        });
    result.after = measured.at(result.choice.kept.size());
    kept = modules_of(result.candidates, result.choice.kept);
  }
  WatchedWork work("write");
  mixed.write(kept, directory.path(), options.shard_bytes, std::ref(work));
  std::filesystem::remove_all(all_fp8);
  directory.commit();

  result.report.bytes_after = mixed.bytes(kept);
  std::erase_if(result.report.quantized,
                [&](const offline::QuantizedTensor& t) { return kept.contains(t.module); });
  for (const Candidate& candidate : result.candidates) result.linear_bytes += candidate.bytes;
  for (const size_t i : result.choice.kept) result.kept_bytes += result.candidates[i].bytes;
  std::erase_if(result.weight_only, [&](size_t i) {
    return std::ranges::find(result.choice.kept, i) != result.choice.kept.end();
  });
  for (const size_t i : result.weight_only) result.weight_only_bytes += result.candidates[i].bytes;
  return result;
}

std::string text_of(const AutoResult& r) {
  std::string text = fmt::format(
      "  chosen by evidence: {} of {} parts stay in 16 bits; {:.1f} % of the linears' bytes are "
      "FP8\n"
      "  against the source in FP32     KL                    perplexity   same top-1\n"
      "    all in FP8                   {:.5f} +- {}    {:>10}   {:.2f} %\n"
      "    as written                   {:.5f} +- {}    {:>10}   {:.2f} %   (by adding up "
      "{:.5f})\n",
      r.choice.kept.size(), r.candidates.size(), 100 * (1 - share_of(r.kept_bytes, r)), r.before.kl,
      error_of(r.before, 5), increase_of(r.before.perplexity, r.perplexity), 100 * r.before.top1,
      r.after.kl, error_of(r.after, 5), increase_of(r.after.perplexity, r.perplexity),
      100 * r.after.top1, r.choice.estimated);
  if (!r.weight_only.empty()) {
    text += fmt::format("  in FP8 with inputs in 16 bits, {:.1f} % of the linears' bytes:\n",
                        100 * share_of(r.weight_only_bytes, r));
    for (const size_t i : r.weight_only) text += fmt::format("    {}\n", r.candidates[i].name);
  }
  if (r.choice.kept.empty()) return text;
  text += "  in 16 bits, what FP8 costs most for each byte first:\n";
  for (const size_t i : r.choice.kept) {
    const Candidate& c = r.candidates[i];
    text += fmt::format("    {}  KL {:.6f}  {:>9}\n", c.name, c.cost,
                        show_bytes(static_cast<double>(c.bytes)));
  }
  return text;
}

OrderedJson json_of(const AutoResult& r) {
  OrderedJson kept = OrderedJson::array(), trials = OrderedJson::array();
  for (const size_t i : r.choice.kept) {
    const Candidate& c = r.candidates[i];
    kept.push_back({{"name", c.name},
                    {"modules", c.modules},
                    {"cost", c.cost},
                    {"bytes", c.bytes},
                    {"bytes_fp8", c.bytes_low}});
  }
  OrderedJson weight_only = OrderedJson::array();
  for (const size_t i : r.weight_only) {
    weight_only.push_back({{"name", r.candidates[i].name}, {"modules", r.candidates[i].modules}});
  }
  for (const auto& trial : r.choice.trials) {
    trials.push_back({{"kept", trial.kept}, {"kl", trial.kl}});
  }
  return {{"perplexity_source", r.perplexity},
          {"all_fp8", json_of(r.before, r.perplexity)},
          {"written", json_of(r.after, r.perplexity)},
          {"kl_by_adding_up", r.choice.estimated},
          {"parts", r.candidates.size()},
          {"fp8_share_of_linear_bytes", 1 - share_of(r.kept_bytes, r)},
          {"weight_only_share_of_linear_bytes", share_of(r.weight_only_bytes, r)},
          {"weight_only", std::move(weight_only)},
          {"kept", std::move(kept)},
          {"measured", std::move(trials)}};
}

}  // namespace octet::cli
