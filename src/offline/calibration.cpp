#include "offline/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/binder.h"
#include "numerics/attention_rule.h"

namespace octet::offline {
namespace {

constexpr int64_t kAdvisedSamples = 256;
constexpr int64_t kFormat = 1;  // of the file

// Of a cache, with their names in the file.
constexpr std::pair<const char*, std::vector<float> CacheRange::*> kChannels[] = {
    {"k_channel_absmax", &CacheRange::k_channels},
    {"v_channel_absmax", &CacheRange::v_channels},
    {"latent_channel_absmax", &CacheRange::latent_channels}};

void require_finite(std::span<const float> values, int64_t cols, const std::string& where) {
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return;
  throw Error({.what = "activations are NaN or infinite, so calibration has no meaning",
               .where = where,
               .value = fmt::format("{} in column {}", *bad, (bad - values.begin()) % cols),
               .accepted = "finite activations",
               .fix = "look at the checkpoint with `octet inspect MODEL --scan`"});
}

// absmax[i] becomes the largest magnitude of column i as well. Nothing where nobody asks for it.
void raise(std::vector<float>& absmax, std::span<const float> values) {
  const size_t width = absmax.size();
  for (size_t i = 0; width > 0 && i < values.size(); ++i) {
    absmax[i % width] = std::max(absmax[i % width], std::abs(values[i]));
  }
}

OrderedJson to_json(const Range& range) {
  const ValueHistogram& values = range.values;
  return {{"min", values.min()},
          {"max", values.max()},
          {"mean_abs", values.mean_abs()},
          {"p99_9", values.percentile(0.999)},
          {"p99_99", values.percentile(0.9999)},
          {"mse_range_e4m3", values.range_of_least_error(Code::e4m3)},
          {"fitted_absmax", range.fitted},
          {"held_out_absmax", range.held_out},
          {"amax_history", range.amax},
          {"histogram", values.to_json()}};
}

Range range_of(const JsonView& json) {
  Range range;
  range.values = ValueHistogram::from_json(json.at("histogram"));
  range.fitted = json.get<float>("fitted_absmax");
  range.held_out = json.get<float>("held_out_absmax");
  range.amax = json.get<std::vector<float>>("amax_history", {});
  const auto wrong = [](float x) { return x < 0; };
  if (range.amax.size() > kAmaxHistory || std::ranges::any_of(range.amax, wrong)) {
    json.refuse("amax_history", "no history of largest magnitudes",
                fmt::format("at most {} numbers from 0 on", kAmaxHistory));
  }
  return range;
}

OrderedJson to_json(const std::vector<Range>& parts) {
  OrderedJson object = OrderedJson::object();
  for (size_t i = 0; i < parts.size(); ++i) object[std::to_string(i)] = to_json(parts[i]);
  return object;
}

std::vector<Range> parts_of(const JsonView& json, const char* key) {
  std::vector<Range> parts;
  const std::optional<JsonView> found = json.find(key);
  if (!found) return parts;
  for (size_t i = 0; i < found->json().size(); ++i) {
    parts.push_back(range_of(found->at(std::to_string(i))));
  }
  return parts;
}

template <class Visit>
void for_each_range(const Calibration& calibration, Visit visit) {
  for (const auto& [name, input] : calibration.inputs) visit(name, input.range);
  for (const auto& [name, cache] : calibration.caches) {
    for (const Range& range : cache.k) visit(name + ", K", range);
    for (const Range& range : cache.v) visit(name + ", V", range);
    for (const Range& range : cache.latent) visit(name + ", latent", range);
  }
}

}  // namespace

void Range::add(std::span<const float> x, bool is_held_out, bool is_new) {
  values.add(x);
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  float& absmax = is_held_out ? held_out : fitted;
  absmax = std::max(absmax, most);
  if (is_new || amax.empty()) {
    if (amax.size() == kAmaxHistory) amax.erase(amax.begin());
    amax.push_back(0);
  }
  amax.back() = std::max(amax.back(), most);
}

void Range::merge(const Range& other) {
  values.merge(other.values);
  fitted = std::max(fitted, other.fitted);
  held_out = std::max(held_out, other.held_out);
  amax.resize(std::max(amax.size(), other.amax.size()));
  for (size_t i = 0; i < other.amax.size(); ++i) amax[i] = std::max(amax[i], other.amax[i]);
}

float scale_of(const Range& range, RangeMethod method, const DelayedScaling& delayed, Code code) {
  if (method != RangeMethod::delayed) return scale_of(range.values, method, code);
  if (range.amax.empty() && range.values.count() > 0) {
    throw Error({.what = "the calibration has no history of largest magnitudes",
                 .where = "--calibration-file",
                 .value = "a file of an earlier version",
                 .accepted = "a calibration whose ranges have \"amax_history\"",
                 .fix = "calibrate again, or choose another method"});
  }
  return scale_of_range(delayed_range(range.amax, delayed), code);
}

std::vector<int64_t> outlier_channels(const InputRange& input) {
  std::vector<float> sorted = input.channel_absmax;
  if (sorted.empty()) return {};
  const auto median = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, median);
  std::vector<int64_t> outliers;
  for (size_t i = 0; i < input.channel_absmax.size(); ++i) {
    if (input.channel_absmax[i] > kOutlier * *median) outliers.push_back(static_cast<int64_t>(i));
  }
  return outliers;
}

const InputRange* Calibration::input_of(std::string_view module) const {
  if (const auto found = inputs.find(module); found != inputs.end()) return &found->second;
  for (const auto& [name, input] : inputs) {
    if (std::ranges::find(input.modules, module) != input.modules.end()) return &input;
  }
  return nullptr;
}

OrderedJson record_of(const Calibration& c, const std::vector<std::string>& measured) {
  OrderedJson record = {
      {"for", measured}, {"longest", c.longest}, {"samples", c.samples}, {"tokens", c.tokens}};
  if (!c.positions.is_null()) record["positions"] = c.positions;
  return record;
}

OrderedJson to_json(const Calibration& c) {
  OrderedJson inputs = OrderedJson::object(), caches = OrderedJson::object();
  for (const auto& [name, input] : c.inputs) {
    OrderedJson one = {{"modules", input.modules}, {"outlier_channels", outlier_channels(input)}};
    one.update(to_json(input.range));
    one["channel_absmax"] = input.channel_absmax;
    inputs[name] = std::move(one);
  }
  for (const auto& [name, cache] : c.caches) {
    OrderedJson one = OrderedJson::object();
    if (!cache.k.empty()) one["k"] = to_json(cache.k);
    if (!cache.v.empty()) one["v"] = to_json(cache.v);
    if (!cache.latent.empty()) one["latent"] = to_json(cache.latent);
    for (const auto& [key, member] : kChannels) {
      if (!(cache.*member).empty()) one[key] = cache.*member;
    }
    caches[name] = std::move(one);
  }
  return {{"octet_calibration", kFormat},
          {"engine", c.engine},
          {"model", c.model},
          {"model_hash", c.model_hash},
          {"data", c.data},
          {"data_hash", c.data_hash},
          {"window", c.window},
          {"samples", c.samples},
          {"samples_in_all", c.samples_in_all},
          {"tokens", c.tokens},
          {"longest", c.longest},
          {"positions", c.positions},
          {"inputs", std::move(inputs)},
          {"caches", std::move(caches)}};
}

Calibration read_calibration(const std::filesystem::path& path) {
  const Json json = parse_json_file(path);
  const JsonView file(json, path.string());
  if (!file.has("octet_calibration")) {
    throw Error({.what = "the file is no calibration",
                 .where = path.string(),
                 .value = "it lacks \"octet_calibration\"",
                 .accepted = "a file that `octet calibrate` wrote"});
  }
  file.integer("octet_calibration", kFormat, kFormat);
  Calibration c;
  c.engine = file.get<std::string>("engine");
  c.model = file.get<std::string>("model");
  c.model_hash = file.get<std::string>("model_hash");
  c.data = file.get<std::string>("data");
  c.data_hash = file.get<std::string>("data_hash");
  c.window = file.integer("window", 1, int64_t{1} << 40);
  c.samples = file.integer("samples", 0, int64_t{1} << 40);
  c.samples_in_all = file.integer("samples_in_all", c.samples, int64_t{1} << 40);
  c.tokens = file.integer("tokens", 0, int64_t{1} << 60);
  // Files of before have neither; no sample is longer than the window.
  c.longest = file.integer("longest", 0, c.window, c.window);
  if (const auto positions = file.find("positions")) {
    c.positions = OrderedJson::parse(dump_json(positions->json()));
  }
  const JsonView inputs = file.at("inputs"), caches = file.at("caches");
  for (const auto& [name, value] : inputs.json().items()) {
    const JsonView one = inputs.at(name);
    c.inputs[name] = {.modules = one.get<std::vector<std::string>>("modules"),
                      .range = range_of(one),
                      .channel_absmax = one.get<std::vector<float>>("channel_absmax")};
  }
  for (const auto& [name, value] : caches.json().items()) {
    const JsonView one = caches.at(name);
    CacheRange& cache = c.caches[name];
    cache.k = parts_of(one, "k");
    cache.v = parts_of(one, "v");
    cache.latent = parts_of(one, "latent");
    for (const auto& [key, member] : kChannels) {
      cache.*member = one.get<std::vector<float>>(key, {});
    }
  }
  return c;
}

void Calibrator::add(Range& range, std::span<const float> x) {
  range.add(x, held_out_, seen_.insert(&range).second);
}

void Calibrator::add_input(std::span<const ops::Linear* const> ws, const Tensor& x) {
  InputRange& input = calibration_.inputs[ws.front()->name];
  const auto width = static_cast<size_t>(x.cols());
  if (input.modules.empty()) {
    for (const ops::Linear* w : ws) input.modules.push_back(w->name);
    input.channel_absmax.resize(width);
  }
  const std::vector<float> values = model::to_float(x);
  require_finite(values, x.cols(), fmt::format("input of '{}'", ws.front()->name));
  add(input.range, values);
  raise(input.channel_absmax, values);
}

void Calibrator::add_parts(std::vector<Range>& parts, std::vector<float>& channels, const Tensor& x,
                           int64_t part, const std::string& where) {
  const std::vector<float> values = model::to_float(x);
  const int64_t rows = x.shape[0], width = x.count() / rows, count = (width + part - 1) / part;
  require_finite(values, width, where);
  // A calibration that an earlier version began has not seen the channels of its first samples.
  if (parts.empty()) channels.resize(static_cast<size_t>(width));
  raise(channels, values);
  parts.resize(static_cast<size_t>(count));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t p = 0; p < count; ++p) {
      const int64_t from = p * part, to = std::min(from + part, width);
      add(parts[static_cast<size_t>(p)],
          std::span(values).subspan(static_cast<size_t>(row * width + from),
                                    static_cast<size_t>(to - from)));
    }
  }
}

void Calibrator::add_cache(const std::string& attention, const Tensor& k, const Tensor& v) {
  CacheRange& cache = calibration_.caches[attention];
  add_parts(cache.k, cache.k_channels, k, k.shape[2], attention + ", K");
  add_parts(cache.v, cache.v_channels, v, v.shape[2], attention + ", V");
}

void Calibrator::add_latent(const std::string& attention, const Tensor& latent) {
  CacheRange& cache = calibration_.caches[attention];
  add_parts(cache.latent, cache.latent_channels, latent, attention_rule::kLatentGroup,
            attention + ", latent");
}

std::vector<std::string> warnings_of(const Calibration& calibration) {
  std::vector<std::string> warnings;
  if (calibration.samples < kAdvisedSamples) {
    warnings.push_back(
        fmt::format("{} calibration samples are few: below {}, ranges may miss what the model will "
                    "see",
                    calibration.samples, kAdvisedSamples));
  }
  int64_t ranges = 0, exceeded = 0;
  float most = 0;
  std::string worst;
  for_each_range(calibration, [&](const std::string& name, const Range& range) {
    ++ranges;
    if (!range.is_exceeded()) return;
    ++exceeded;
    if (range.held_out / range.fitted <= most) return;
    most = range.held_out / range.fitted;
    worst = name;
  });
  if (exceeded > 0) {
    warnings.push_back(fmt::format(
        "the held-out tenth of the samples exceeds the range of the others in {} of {} ranges, by "
        "at most {:.1f} % ('{}'): more samples, or more varied ones, would find larger values",
        exceeded, ranges, 100 * (most - 1), worst));
  }
  return warnings;
}

}  // namespace octet::offline
