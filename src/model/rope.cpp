#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config_rope.h"
#include "numerics/exact_math.h"

namespace octet::model {
namespace {

using Kind = RopeConfig::Kind;

// The base's growth that stretches the slowest pair by `factor` and leaves the fastest alone.
double base_growth(const RopeConfig& rope, double factor) {
  const double dim = static_cast<double>(rope.dim);
  return exact::pow(factor, dim / (dim - 2.0));
}

// The pair whose wavelength makes `rotations` turns within the original context (YaRN, eq. 17).
double correction_pair(const RopeConfig& rope, double rotations) {
  const double positions = static_cast<double>(rope.original_positions);
  return static_cast<double>(rope.dim) *
         exact::log(positions / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * exact::log(rope.theta));
}

void scale_yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  double low = correction_pair(rope, rope.beta_fast);
  double high = correction_pair(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double original = static_cast<double>(rope.original_positions);
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < original / rope.high_freq_factor) continue;
    if (wavelength > original / rope.low_freq_factor) {
      frequency /= rope.factor;
      continue;
    }
    const double t = (original / wavelength - rope.low_freq_factor) /
                     (rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1.0 - t) * frequency / rope.factor + t * frequency;
  }
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope) {
  const double dim = static_cast<double>(rope.dim);
  double theta = rope.theta;
  if (rope.kind == Kind::ntk) theta *= base_growth(rope, rope.factor);
  if (rope.kind == Kind::dynamic) {
    // How much longer than trained, as a factor of its own: 1 up to the trained length.
    const double length = static_cast<double>(std::max(rope.length, rope.original_positions));
    const double share = length / static_cast<double>(rope.original_positions);
    theta *= base_growth(rope, rope.factor * share - (rope.factor - 1.0));
  }
  std::vector<double> frequencies(static_cast<size_t>(rope.dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = exact::pow(theta, -2.0 * static_cast<double>(i) / dim);
  }
  switch (rope.kind) {
    case Kind::plain:
    case Kind::ntk:
    case Kind::dynamic:
      break;
    case Kind::linear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case Kind::yarn:
      scale_yarn(rope, frequencies);
      break;
    case Kind::llama3:
      scale_llama3(rope, frequencies);
      break;
    case Kind::longrope: {
      const bool longer = rope.length > rope.original_positions;
      const std::vector<double>& factors = longer ? rope.long_factor : rope.short_factor;
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
      break;
    }
  }
  return frequencies;
}

int64_t rope_reach(const RopeConfig& rope, int64_t max_positions) {
  const bool by_factor =
      rope.kind == Kind::dynamic ||
      (rope.original_given &&
       (rope.kind == Kind::yarn || rope.kind == Kind::linear || rope.kind == Kind::ntk));
  if (!by_factor) return max_positions;
  const double reach = static_cast<double>(rope.original_positions) * rope.factor;
  constexpr double kMost = double{1 << 30};  // as max_position_embeddings itself
  return std::max(max_positions, static_cast<int64_t>(std::min(reach, kMost)));
}

bool same_rotation(const RopeConfig& a, const RopeConfig& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::abs(y); };
  // The DeepSeek models scale their softmax by it.
  const auto softmax = [](const RopeConfig& rope) {
    return rope.kind == Kind::yarn ? yarn_mscale(rope.factor, rope.mscale_all_dim) : 1.0;
  };
  return std::ranges::equal(rope_frequencies(a), rope_frequencies(b), near) &&
         near(rope_attention_factor(a), rope_attention_factor(b)) && near(softmax(a), softmax(b));
}

std::string to_string(const RopeConfig& rope) {
  std::string text(name_of(rope.kind));
  if (rope.factor != 1) text += fmt::format(" x {:g}", rope.factor);
  text += fmt::format(", base {:g}", rope.theta);
  if (rope.kind == Kind::plain) return text;
  text += fmt::format(", {} positions before the scaling", rope.original_positions);
  if (rope.kind == Kind::dynamic || rope.kind == Kind::longrope) {
    text += fmt::format(", for sequences of {}", rope.length);
  }
  return text;
}

std::optional<std::string> rope_notice(const RopeConfig& rope) {
  if (rope.kind == Kind::dynamic) {
    return fmt::format(
        "RoPE scaling 'dynamic': the base is that of sequences of {} tokens (--max-model-len) for "
        "sequences of every length, since cached keys cannot turn with the length",
        rope.length);
  }
  if (rope.kind == Kind::longrope) {
    const bool longer = rope.length > rope.original_positions;
    return fmt::format(
        "RoPE scaling 'longrope': sequences of every length use the {} factors, as sequences of {} "
        "tokens (--max-model-len) do; the trained length is {}",
        longer ? "long" : "short", rope.length, rope.original_positions);
  }
  return std::nullopt;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * exact::log(factor) + 1.0;
}

double rope_attention_factor(const RopeConfig& rope) {
  if (rope.kind != Kind::yarn && rope.kind != Kind::longrope) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.kind == Kind::longrope) {
    if (rope.factor <= 1.0) return 1.0;
    const double trained = static_cast<double>(rope.original_positions);
    return std::sqrt(1.0 + exact::log(rope.factor) / exact::log(trained));
  }
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

RopeMemory build_rope_table(ops::Backend& backend, const RopeConfig& rope, int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(rope);
  const double factor = rope_attention_factor(rope);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  const auto values = static_cast<size_t>(positions * pairs);
  const Shape shape{positions, pairs};

  const Buffer host = host_buffer(2 * values * sizeof(float));
  float* cos = host.tensor(DType::f32, shape).as<float>();
  float* sin = cos + values;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const exact::SinCos angle =
          exact::sin_cos(static_cast<double>(position) * frequencies[static_cast<size_t>(pair)]);
      *cos++ = static_cast<float>(angle.cos * factor);
      *sin++ = static_cast<float>(angle.sin * factor);
    }
  }

  RopeMemory memory;
  memory.buffer = backend.alloc(2 * values * sizeof(float), "RoPE table");
  memory.table.cos = memory.buffer.tensor(DType::f32, shape);
  memory.table.sin = memory.buffer.tensor(DType::f32, shape, values * sizeof(float));
  memory.table.interleaved = rope.interleaved;
  backend.copy(host.tensor(DType::f32, shape), memory.table.cos);
  backend.copy(host.tensor(DType::f32, shape, values * sizeof(float)), memory.table.sin);
  backend.sync();  // before the host copy goes
  return memory;
}

}  // namespace octet::model
