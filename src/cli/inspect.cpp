// octet inspect MODEL: what a checkpoint holds, which precision each linear gets and why, and
// whether a weight, a scale or the way in which it was quantized is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "base/progress.h"
#include "cli/calibration_findings.h"
#include "cli/name_patterns.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "model/binder.h"
#include "model/rope.h"
#include "offline/diagnose.h"
#include "offline/twin.h"
#include "ops/null_backend.h"

namespace octet::cli {
namespace {

struct InspectOptions {
  ModelOptions model;
  bool all = false, scan = true;
  std::string twin, json;
};

struct PolicyFact {
  std::string module;
  std::string_view role;
  std::string stored;
  PolicyRow row;
};

struct Facts {
  std::vector<offline::ScannedTensor> tensors;
  std::vector<PolicyFact> policy;
  std::vector<std::string> notices;
  std::vector<offline::Finding> findings;
  std::vector<offline::TwinError> twin;
  int64_t parameters = 0;
  double bytes_per_token = 0;
};

// Without a backend that computes: names, shapes and precisions are checked as for a run.
std::unique_ptr<model::Model> read_policy(const OpenModel& open, ops::Backend& nowhere,
                                          Facts& facts) {
  model::LoadOptions options{
      .compute = model::Compute::bf16, .max_positions = 1, .read_weights = false};
  auto model = model::load_model(open.config(), open.shared_source(), nowhere, options);
  facts.notices = model->notices();
  facts.parameters = model->parameters();
  facts.bytes_per_token = model->bytes_per_token();
  const Policy policy = model::effective_policy(open.config(), open.load_options());
  for (const model::LinearUse& use : model->linears()) {
    const ops::Linear& linear = *use.linear;
    facts.policy.push_back(
        {linear.name, name_of(linear.role),
         linear.quant ? to_string(linear.quant.format) : std::string(name_of(linear.plain.type)),
         resolve(policy, linear.role, linear.name)});
  }
  return model;
}

// Exponents that compressed-tensors stores as plain bytes.
Tensor as_scanned(const std::string& name, const Tensor& tensor) {
  const bool exponents = tensor.type == DType::u8 && offline::is_scale(name);
  Tensor seen = tensor;
  if (exponents) seen.type = DType::e8m0;
  return seen;
}

void read_tensors(const OpenModel& open, bool with_scan, Facts& facts) {
  int64_t bytes = 0;
  for (const std::string& name : open.source().names()) {
    facts.tensors.push_back({name, *open.source().find(name, {}), std::nullopt});
    bytes += facts.tensors.back().tensor.bytes();
  }
  if (!with_scan) return;
  Progress progress("scan", bytes, Progress::Unit::bytes);
  for (offline::ScannedTensor& fact : facts.tensors) {
    fact.scan = offline::scan(as_scanned(fact.name, open.source().read(fact.name, fact.tensor)));
    open.source().release(fact.name);
    progress.advance(fact.tensor.bytes());
  }
}

// What tokenizer_config.json says that the model was made for; its largest numbers mean "unknown".
std::optional<int64_t> tokenizer_max_length(const std::string& model) {
  const std::filesystem::path path = std::filesystem::path(model) / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  const Json json = parse_json_file(path);
  if (!json.is_object() || !json.contains("model_max_length")) return std::nullopt;
  const Json& length = json["model_max_length"];
  if (!length.is_number() || length.get<double>() > 1e9 || length.get<double>() < 1) {
    return std::nullopt;
  }
  return static_cast<int64_t>(length.get<double>());
}

void append(std::vector<offline::Finding> more, Facts& facts) {
  for (offline::Finding& finding : more) facts.findings.push_back(std::move(finding));
}

// The weights once more, where they can be read, against those that they were made from.
void read_twin(const OpenModel& open, const std::string& own, const std::string& path,
               Facts& facts) {
  const auto backend = open_backend({});
  const auto model = model::load_model(open.config(), open.shared_source(), *backend,
                                       {.compute = model::Compute::bf16, .max_positions = 1});
  facts.twin = offline::compare_with_twin(*model, *model::open_weights(path));
  // As the files have them: what this run overrides is no fault of theirs.
  append(offline::diagnose_twin(model::read_config(own), model::read_config(path)), facts);
  for (const offline::TwinError& error : facts.twin) {
    if (error.relative_rms <= offline::most_error(open.config(), error.module)) continue;
    if (!std::isfinite(error.relative_rms)) {
      facts.findings.push_back(
          {offline::Severity::wrong, "twin", error.module,
           "cannot be compared: the 16-bit weight is zero, or one of the two holds values that are "
           "not finite",
           fmt::format("run `octet inspect {}`; if it is sound, quantize it again", path)});
      continue;
    }
    facts.findings.push_back(
        {offline::Severity::wrong, "twin", error.module,
         fmt::format("differs from the 16-bit weight by {:.3g} % (its size is {:#.3g} times that "
                     "one's)",
                     100.0 * error.relative_rms, error.norm_ratio),
         "check that the two checkpoints belong together; if they do, this one was written "
         "wrongly: quantize the 16-bit one again"});
  }
}

std::string twin_lines(const Facts& facts) {
  if (facts.twin.empty()) return "";
  const auto error = [](const offline::TwinError& twin) {
    return std::isfinite(twin.relative_rms) ? twin.relative_rms : 0.0;  // which is a finding
  };
  const auto worst = std::ranges::max_element(facts.twin, {}, error);
  return fmt::format("\n{} quantized weights against the 16-bit twin: at most {:.3g} % off, {}\n",
                     facts.twin.size(), 100.0 * error(*worst), worst->module);
}

std::string tensor_lines(const Facts& facts, bool all) {
  struct Group {
    int64_t count = 0, bytes = 0, elements = 0, saturated = 0;
    float least = 0, most = 0;
    bool scanned = false;
  };
  OrderedGroups<std::string, Group> groups;
  for (const offline::ScannedTensor& fact : facts.tensors) {
    const std::string name = all ? fact.name : folded(fact.name);
    Group& group = groups[fmt::format("{:<9} {:<16} {}", name_of(fact.tensor.type),
                                      to_string(fact.tensor.shape), printable(name))];
    group.bytes += fact.tensor.bytes();
    group.elements += fact.tensor.count();
    if (fact.scan) {
      group.least = group.count ? std::min(group.least, fact.scan->least) : fact.scan->least;
      group.most = group.count ? std::max(group.most, fact.scan->most) : fact.scan->most;
      group.saturated += fact.scan->saturated;
      group.scanned = true;
    }
    ++group.count;
  }
  std::string text =
      "tensors: count, bytes, range (FP8: of the codes), at the largest code; type, "
      "shape, name\n";
  for (const auto& [key, group] : groups.entries()) {
    const std::string range =
        group.scanned ? fmt::format("{:.4g} .. {:.4g}", group.least, group.most) : "";
    const std::string saturated =
        group.saturated ? fmt::format("{:.3f} %", 100.0 * static_cast<double>(group.saturated) /
                                                      static_cast<double>(group.elements))
                        : "";
    text += fmt::format("  {:>6} {:>10}  {:<24} {:>8}  {}\n", group.count,
                        show_bytes(static_cast<double>(group.bytes)), range, saturated, key);
  }
  return text;
}

std::string policy_lines(const Facts& facts, bool all) {
  OrderedGroups<std::string, int64_t> groups;
  for (const PolicyFact& fact : facts.policy) {
    const std::string module = all ? fact.module : folded(fact.module);
    ++groups[fmt::format("{} ({}, stored {})\n           {}\n           {} [{}]", module, fact.role,
                         fact.stored, to_string(fact.row.format), fact.row.reason,
                         fact.row.origin)];
  }
  std::string text = "\nprecision of every linear: count, module, format, reason and origin\n";
  for (const auto& [key, count] : groups.entries()) {
    text += fmt::format("  {:>6}  {}\n", count, key);
  }
  return text;
}

std::string finding_lines(const Facts& facts) {
  std::string text;
  for (const offline::Finding& finding : facts.findings) {
    text += fmt::format(
        "{}: {}{}{}\n        {}\n", finding.severity == offline::Severity::wrong ? "BROKEN" : "odd",
        printable(finding.where), finding.where.empty() ? "" : ": ", finding.what, finding.fix);
  }
  return text;
}

// "RoPE yarn x 4, base 1e+06; a window of 4096 tokens in 14 of 28 layers".
std::string positions(const model::ModelConfig& config) {
  std::string text = "RoPE " + model::to_string(config.rope);
  std::map<int64_t, int64_t> layers;  // by window
  for (const int64_t window : config.windows) ++layers[window];
  for (const auto& [window, count] : layers) {
    if (window == 0) continue;
    text += fmt::format("; a window of {} tokens in {} of {} layers", window, count, config.layers);
  }
  return text;
}

bool is_wrong(const Facts& facts) {
  return std::ranges::any_of(facts.findings, [](const offline::Finding& finding) {
    return finding.severity == offline::Severity::wrong;
  });
}

std::string summary(const OpenModel& open, const Facts& facts) {
  const model::ModelConfig& c = open.config();
  return fmt::format(
      "{}: {} layers, hidden {}, vocabulary {}, context {}\n{}\n"
      "{:.2f}M parameters; a decoded token reads {} of weights as stored; run as {}\n\n",
      c.architecture, c.layers, c.hidden, c.vocab, c.max_positions, positions(c),
      static_cast<double>(facts.parameters) * 1e-6, show_bytes(facts.bytes_per_token),
      open.run_as());
}

OrderedJson json_of(const OpenModel& open, const Facts& facts) {
  OrderedJson tensors = OrderedJson::array(), policy = OrderedJson::array();
  for (const offline::ScannedTensor& fact : facts.tensors) {
    OrderedJson shape = OrderedJson::array();
    for (int axis = 0; axis < fact.tensor.shape.rank; ++axis) {
      shape.push_back(fact.tensor.shape[axis]);
    }
    OrderedJson one = {{"name", fact.name},
                       {"dtype", name_of(fact.tensor.type)},
                       {"shape", std::move(shape)},
                       {"bytes", fact.tensor.bytes()}};
    if (fact.scan) {
      one["min"] = fact.scan->least;
      one["max"] = fact.scan->most;
      one["nan"] = fact.scan->nan;
      one["inf"] = fact.scan->inf;
      one["zero"] = fact.scan->zero;
      one["saturated"] = fact.scan->saturated;
    }
    tensors.push_back(std::move(one));
  }
  for (const PolicyFact& fact : facts.policy) {
    policy.push_back({{"module", fact.module},
                      {"role", fact.role},
                      {"stored", fact.stored},
                      {"format", to_string(fact.row.format)},
                      {"reason", fact.row.reason},
                      {"origin", fact.row.origin}});
  }
  OrderedJson twin = OrderedJson::array();
  for (const offline::TwinError& error : facts.twin) {
    twin.push_back({{"module", error.module},
                    {"relative_rms", error.relative_rms},
                    {"norm_ratio", error.norm_ratio}});
  }
  OrderedJson findings = OrderedJson::array();
  for (const offline::Finding& finding : facts.findings) {
    findings.push_back({{"severity", name_of(finding.severity)},
                        {"check", finding.check},
                        {"where", finding.where},
                        {"what", finding.what},
                        {"fix", finding.fix}});
  }
  return {{"architecture", open.config().architecture},
          {"positions", positions(open.config())},
          {"parameters", facts.parameters},
          {"bytes_per_token", facts.bytes_per_token},
          {"compute", name_of(open.load_options().compute)},
          {"attention", open.attention()},
          {"kv_cache", open.kv_name()},
          {"run_as", open.run_as()},
          {"notices", facts.notices},
          {"findings", std::move(findings)},
          {"twin", std::move(twin)},
          {"tensors", std::move(tensors)},
          {"policy", std::move(policy)}};
}

}  // namespace

int run_inspect(Args args) {
  InspectOptions o;
  OptionTable table("octet inspect",
                    "Show tensors, precisions with their reasons, and broken values.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.add("--all", &o.all, "one line for each tensor, not for each kind");
  table.add("--scan", &o.scan, "read every value, to find NaN, infinities and saturated codes");
  table.add("--twin", &o.twin,
            "the 16-bit checkpoint that this one was made from: compare every quantized weight",
            {.metavar = "DIR"});
  add_model_rows(table, o.model);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  o.model.shape_alone = true;
  o.scan = o.scan && !o.model.random_weights;  // whose values say nothing
  const OpenModel open(o.model);
  Facts facts;
  ops::NullBackend nowhere;
  const auto model = read_policy(open, nowhere, facts);
  for (std::string& note : open.file_notes()) facts.notices.push_back(std::move(note));
  read_tensors(open, o.scan, facts);
  facts.findings =
      offline::diagnose(open.config(), *model, facts.tensors, tokenizer_max_length(o.model.path));
  append(calibration_findings(o.model.path, open), facts);
  if (!o.twin.empty()) read_twin(open, o.model.path, o.twin, facts);
  if (prints_text(o.json)) {
    print(summary(open, facts) + tensor_lines(facts, o.all) + policy_lines(facts, o.all));
    if (!facts.notices.empty()) print("\n");
    for (const std::string& notice : facts.notices)
      print(fmt::format("notice: {}\n", printable(notice)));
    print(twin_lines(facts) + finding_lines(facts));
    if (o.scan && !is_wrong(facts)) print("\nno NaN, no infinity, no scale out of range\n");
  }
  write_json(o.json, json_of(open, facts));
  return is_wrong(facts) ? 1 : 0;
}

}  // namespace octet::cli
