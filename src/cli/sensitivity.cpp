#include "cli/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "cli/fingerprint.h"
#include "cli/watched_work.h"
#include "eval/dataset.h"
#include "eval/item_log.h"
#include "model/identity.h"

namespace octet::cli {
namespace {

// Nats a token; what a file says beyond them was measured on no model.
constexpr double kMostKl = 1e6, kMostPerplexity = 1e300;

constexpr std::array<std::pair<eval::Part::Kind, const char*>, 5> kKinds = {{
    {eval::Part::Kind::linear, "linear"},
    {eval::Part::Kind::cache, "cache"},
    {eval::Part::Kind::router, "router"},
    {eval::Part::Kind::embedding, "embedding"},
    {eval::Part::Kind::lm_head, "lm_head"},
}};

// What of a linear is tried: "both" its weight and its input, or one of the two; the cache with
// both.
eval::LowPrecision formats_of(const SensitivityOptions& o) {
  if (o.operand == "both") {
    return {.linear = scheme_named(o.scheme).format,
            .cache = model::parse_kv_type(o.kv_cache_dtype)};
  }
  if (o.high_roles) {
    throw Error({.what = "what is kept high by default is tried as a whole",
                 .where = "--operand",
                 .value = o.operand + " with --high-roles",
                 .accepted = "both",
                 .fix = "leave one of the two out"});
  }
  LinearFormat format = scheme_named(o.scheme).format;
  if (o.operand == "input" && !format.input) {
    throw Error({.what = "the scheme quantizes no inputs",
                 .where = "--operand",
                 .value = fmt::format("input with --scheme {}", o.scheme),
                 .accepted = "both or weight, or a scheme that quantizes inputs"});
  }
  (o.operand == "input" ? format.weight : format.input).reset();
  return {.linear = format, .cache = model::KvType::automatic};
}

// Trials of one model. Its weights as stored are mapped once and shared by all of them; what a
// trial quantizes lives as long as the trial.
class Trials {
 public:
  explicit Trials(const SensitivityOptions& o)
      : o_(o), formats_(formats_of(o)), open_({.path = o.model, .compute = o.compute}) {
    if (open_.config().quant) {
      throw Error({.what = "the model is quantized already, so none of its parts can be tried",
                   .where = o.model,
                   .accepted = "a model in BF16, FP16 or FP32"});
    }
    pieces_ = draw_windows(o.text, open_);
    if (!o.resume.empty()) log_ = eval::ItemLog(o.resume);
    model_ = fingerprint_of({.path = o.model, .compute = o.compute}, o.device);
    input_ = hash_of(pieces_, fmt::format("{};{};{};{}{}", o.scheme, o.kv_cache_dtype, o.by,
                                          o.leave_one_out, o.operand == "both" ? "" : o.operand));
    threads_.emplace(default_thread_count());
    backend_ = open_backend(o.device);
    open_.load(*backend_, eval::longest(pieces_));
    parts_ = eval::parts_of(open_.model(), eval::parse_part_by(o.by), formats_, o.high_roles);
    layers_ = open_.config().layers;
  }

  Sensitivity run() {
    Sensitivity found{.options = o_,
                      .model_hash = model::identity_of(o_.model),
                      .tokens = eval::scored_tokens(pieces_)};
    found.perplexity = baseline();
    found.everything = measure("everything", all_but(nullptr));
    for (const eval::Part& part : parts_) {
      const bool reversed = o_.leave_one_out && is_low(part);
      if (o_.leave_one_out && !reversed) continue;
      found.parts.push_back(
          {part, measure(part.name, reversed ? all_but(&part) : std::vector{&part})});
    }
    std::ranges::stable_sort(found.parts, std::ranges::greater(),
                             [&](const MeasuredPart& part) { return found.cost(part); });
    return found;
  }

 private:
  // What "everything" means: the parts that become FP8 by default.
  static bool is_low(const eval::Part& part) {
    return part.kind == eval::Part::Kind::linear || part.kind == eval::Part::Kind::cache;
  }

  std::vector<const eval::Part*> all_but(const eval::Part* one) const {
    std::vector<const eval::Part*> low;
    for (const eval::Part& part : parts_) {
      if (is_low(part) && &part != one) low.push_back(&part);
    }
    return low;
  }

  eval::ItemKey key(const std::string& item) const { return {model_, "sensitivity", item, input_}; }

  eval::Advance advance() {
    return [this](int64_t tokens) {
      const auto runs = static_cast<int64_t>(parts_.size()) + 2;  // as stored, and everything
      work_(done_ += tokens, eval::total_tokens(pieces_) * runs);
    };
  }

  // The model as it is stored, computed when it is first needed.
  const eval::Reference& reference() {
    if (!reference_) {
      reference_.emplace(eval::Subject{open_.model(), *backend_}, pieces_, *threads_, advance());
    }
    return *reference_;
  }

  double baseline() {
    if (const Json* kept = log_.find(key("as stored"))) {
      return JsonView(*kept, o_.resume).number("perplexity", 1, kMostPerplexity);
    }
    log_.add(key("as stored"), {{"perplexity", reference().perplexity()}});
    return reference().perplexity();
  }

  eval::Fidelity measure(const std::string& item, const std::vector<const eval::Part*>& low) {
    if (const Json* kept = log_.find(key(item))) {
      advance()(eval::total_tokens(pieces_));
      return read_fidelity(JsonView(*kept, o_.resume));
    }
    const eval::Trial trial = eval::trial_of(low, formats_, layers_);
    model::LoadOptions load = open_.load_options();
    load.policy = trial.policy;
    load.max_positions = eval::longest(pieces_);
    const auto source = eval::rounded_ends(open_.shared_source(), open_.config(),
                                           formats_.linear.weight.value_or(QuantFormat{}), trial);
    const auto model = model::load_model(open_.config(), source, *backend_, load);
    const eval::Fidelity found = reference().measure(
        {.model = *model, .backend = *backend_, .kv_by_layer = trial.kv_by_layer}, advance());
    log_.add(key(item), json_of(found));
    return found;
  }

  const SensitivityOptions& o_;
  WatchedWork work_{"sensitivity", Progress::Unit::tokens};  // before there are threads
  eval::LowPrecision formats_;
  OpenModel open_;
  std::vector<eval::Piece> pieces_;
  eval::ItemLog log_;
  std::string model_, input_;
  std::optional<ThreadPool> threads_;
  std::unique_ptr<ops::Backend> backend_;
  std::vector<eval::Part> parts_;
  int64_t layers_ = 0;
  std::optional<eval::Reference> reference_;
  int64_t done_ = 0;
};

eval::Part::Kind kind_of(const JsonView& view) {
  const std::string name = view.get<std::string>("kind");
  for (const auto& [kind, known] : kKinds) {
    if (name == known) return kind;
  }
  view.refuse("kind", "unknown kind of part", "linear, cache, router, embedding, lm_head");
}

// A name that a parser of the command line takes, told as a fault of the file.
template <class Parse>
std::string known_name(const JsonView& view, std::string_view key, Parse parse) {
  std::string name = view.get<std::string>(key);
  try {
    parse(name);
  } catch (const Error& error) {
    view.refuse(key, error.parts().what, error.parts().accepted);
  }
  return name;
}

}  // namespace

void add_drawn_text_rows(OptionTable& table, DrawnText& o, bool required) {
  table.add("--text", &o.file, "the text on which outputs are compared",
            {.metavar = "FILE", .required = required});
  table.add("--windows", &o.windows, "of the text, drawn by --seed", {.least = 1});
  table.add("--window", &o.window, "tokens of a window, BOS included", {.least = 2});
  table.add("--seed", &o.seed, "of the windows", {.least = 0});
}

void add_resume_row(OptionTable& table, std::string* file) {
  table.add("--resume", file,
            "keep figures in this file (JSON lines), and take those that are there already",
            {.metavar = "FILE"});
}

std::vector<eval::Piece> draw_windows(const DrawnText& o, const OpenModel& open) {
  const std::vector<int32_t> ids =
      open.encode(read_text(o.file), o.file, {.add_special_tokens = false, .parse_special = false});
  std::vector<eval::Piece> all =
      eval::cut(ids, open.bos(), eval::Convention::windows, o.window, open.max_model_len());
  std::vector<eval::Piece> drawn;
  for (const size_t place :
       eval::choose(all.size(), static_cast<size_t>(o.windows), static_cast<uint64_t>(o.seed))) {
    drawn.push_back(std::move(all[place]));
  }
  return drawn;
}

std::string hash_of(std::span<const eval::Piece> pieces, std::string_view how) {
  Hash64 hash;
  for (const eval::Piece& piece : pieces) {
    hash.add(std::as_bytes(std::span(piece.tokens)));
    hash.add(";");
  }
  hash.add(how);
  return hash.hex();
}

double Sensitivity::cost(const MeasuredPart& part) const {
  return options.leave_one_out ? everything.kl - part.fidelity.kl : part.fidelity.kl;
}

Sensitivity measure_sensitivity(const SensitivityOptions& options) {
  return Trials(options).run();
}

std::string increase_of(double perplexity, double base) {
  return fmt::format("{:+.2f} %", 100 * (perplexity / base - 1));
}

std::string error_of(const eval::Fidelity& fidelity, int digits) {
  return fidelity.kl_error ? fmt::format("{:.{}f}", *fidelity.kl_error, digits) : "unknown";
}

OrderedJson json_of(const eval::Fidelity& f) {
  OrderedJson json = {{"kl", f.kl}, {"kl_error", nullptr}};
  if (f.kl_error) json["kl_error"] = *f.kl_error;
  json["perplexity"] = f.perplexity;
  json["top1_agreement"] = f.top1;
  return json;
}

OrderedJson json_of(const eval::Fidelity& f, double base) {
  OrderedJson json = json_of(f);
  json["perplexity_increase"] = f.perplexity / base - 1;
  return json;
}

eval::Fidelity read_fidelity(const JsonView& view) {
  eval::Fidelity fidelity{.perplexity = view.number("perplexity", 1, kMostPerplexity),
                          .kl = view.number("kl", 0, kMostKl),
                          .top1 = view.number("top1_agreement", 0, 1)};
  if (view.has("kl_error")) fidelity.kl_error = view.number("kl_error", 0, kMostKl);
  return fidelity;
}

OrderedJson json_of(const Sensitivity& s) {
  OrderedJson parts = OrderedJson::array();
  for (const MeasuredPart& measured : s.parts) {
    const eval::Part& part = measured.part;
    OrderedJson one = {{"name", part.name}};
    for (const auto& [kind, name] : kKinds) {
      if (kind == part.kind) one["kind"] = name;
    }
    one["pattern"] = part.pattern;
    one["layer"] = part.layer;
    one["linears"] = part.linears;
    one["bytes"] = part.bytes;
    one["bytes_fp8"] = part.bytes_low;
    one.update(json_of(measured.fidelity, s.perplexity));
    one["cost"] = s.cost(measured);
    parts.push_back(std::move(one));
  }
  return {{"model", s.options.model},
          {"model_hash", s.model_hash},
          {"scheme", s.options.scheme},
          {"kv_cache_dtype", s.options.kv_cache_dtype},
          {"compute", s.options.compute},
          {"by", s.options.by},
          {"operand", s.options.operand},
          {"leave_one_out", s.options.leave_one_out},
          {"text", s.options.text.file},
          {"windows", s.options.text.windows},
          {"window", s.options.text.window},
          {"seed", s.options.text.seed},
          {"tokens", s.tokens},
          {"perplexity", s.perplexity},
          {"everything", json_of(s.everything, s.perplexity)},
          {"parts", std::move(parts)}};
}

Sensitivity read_sensitivity(const std::string& path) {
  const Json json = parse_json_file(path);
  const JsonView view(json, path);
  Sensitivity s;
  s.options.model = view.get<std::string>("model");
  s.options.scheme =
      known_name(view, "scheme", [](const std::string& name) { scheme_named(name); });
  s.options.by = known_name(view, "by", [](const std::string& name) { eval::parse_part_by(name); });
  s.options.operand = view.get<std::string>("operand", "both");
  if (s.options.operand != "both") {
    view.refuse("operand", "these are the costs of one operand of the linears",
                "both, of `octet eval sensitivity` without --operand");
  }
  s.options.leave_one_out = view.get<bool>("leave_one_out");
  s.model_hash = view.get<std::string>("model_hash");
  s.perplexity = view.number("perplexity", 1, kMostPerplexity);
  constexpr int64_t most = int64_t{1} << 50;
  s.tokens = view.integer("tokens", 1, most);
  s.everything = read_fidelity(view.at("everything"));
  std::set<std::pair<eval::Part::Kind, std::string>> names;
  for (const JsonView& part : view.elements("parts")) {
    s.parts.push_back({{.kind = kind_of(part),
                        .name = part.get<std::string>("name"),
                        .pattern = part.get<std::string>("pattern"),
                        .layer = part.integer("layer", -1, most),
                        .linears = part.integer("linears", 0, most),
                        .bytes = part.integer("bytes", 0, most),
                        .bytes_low = part.integer("bytes_fp8", 0, most)},
                       read_fidelity(part)});
    if (names.emplace(s.parts.back().part.kind, s.parts.back().part.name).second) continue;
    part.refuse("name", "a part is there twice", "each part once");
  }
  return s;
}

}  // namespace octet::cli
