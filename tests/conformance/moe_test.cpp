// The router, and the experts behind it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/oracle.h"
#include "conformance/rig.h"

namespace octet::conformance {
namespace {

using Method = ops::RouterSpec::Method;
using Scoring = ops::RouterSpec::Scoring;

ops::RouterSpec spec_of(Scoring scoring, Method method, int experts, int top_k, int groups,
                        int top_groups, bool normalize, float scaling) {
  return {scoring, method, experts, top_k, groups, top_groups, normalize, scaling};
}

std::string name_of(const ops::RouterSpec& s) {
  return fmt::format(
      "{} {} {}/{} groups {}/{}{} x{}", s.scoring == Scoring::softmax ? "softmax" : "sigmoid",
      s.method == Method::greedy     ? "greedy"
      : s.method == Method::noaux_tc ? "noaux_tc"
                                     : "group_limited",
      s.top_k, s.experts, s.top_groups, s.groups, s.normalize ? " normalized" : "", s.scaling);
}

TEST(Router, EveryMethod) {
  const std::vector<ops::RouterSpec> specs = {
      spec_of(Scoring::softmax, Method::greedy, 8, 2, 1, 1, true, 1.0f),
      spec_of(Scoring::softmax, Method::greedy, 64, 6, 1, 1, false, 1.0f),
      spec_of(Scoring::softmax, Method::group_limited_greedy, 160, 6, 8, 3, false, 16.0f),
      spec_of(Scoring::sigmoid, Method::noaux_tc, 256, 8, 8, 4, true, 2.5f),
      spec_of(Scoring::sigmoid, Method::noaux_tc, 12, 3, 3, 2, false, 1.5f),
      spec_of(Scoring::sigmoid, Method::noaux_tc, 4, 2, 4, 2, true, 1.0f),
      spec_of(Scoring::softmax, Method::noaux_tc, 8, 8, 1, 1, true, 1.0f)};
  for (const ops::RouterSpec& spec : specs) {
    for (const bool biased : {false, true}) {
      const int64_t rows = 37;
      // Multiples of a step that FP32 keeps apart, so that the choice does not hang on a rounding.
      Floats logits = random_values(70, rows * spec.experts, 2.0f);
      for (float& v : logits) v = std::round(v * 64.0f) / 64.0f;
      Floats bias;
      if (biased) {
        bias = random_values(71, spec.experts, 0.3f);
        for (float& v : bias) v = std::round(v * 1024.0f) / 1024.0f;
      }
      std::vector<int32_t> want;
      Doubles weights;
      for (int64_t r = 0; r < rows; ++r) {
        const Doubles row(logits.begin() + r * spec.experts,
                          logits.begin() + (r + 1) * spec.experts);
        const oracle::Routed routed = oracle::route(row, to_doubles(bias), spec);
        want.insert(want.end(), routed.experts.begin(), routed.experts.end());
        weights.insert(weights.end(), routed.weights.begin(), routed.weights.end());
      }
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        Rig rig(backend);
        const ops::Routing out{rig.make(DType::i32, {rows, spec.top_k}),
                               rig.make(DType::f32, {rows, spec.top_k})};
        backend.moe_route(rig.put(DType::f32, {rows, spec.experts}, logits),
                          biased ? rig.put(DType::f32, {spec.experts}, bias) : Tensor{}, spec, out);
        const std::string what = name_of(spec) + (biased ? " bias" : "");
        EXPECT_EQ(rig.get_ints(out.experts), want) << what;
        report("moe_route", name, what, worst(rig.get(out.weights), weights, [&](size_t) {
                 return Budget{0.0, budgets::kF32Rounding * (16.0 + spec.experts)};
               }));
      });
    }
  }
}

TEST(Router, TiesGoToTheLowerExpert) {
  for (const Method method : {Method::greedy, Method::group_limited_greedy, Method::noaux_tc}) {
    const ops::RouterSpec spec = spec_of(Scoring::sigmoid, method, 8, 3, 4, 2, false, 1.0f);
    for_each_backend([&](ops::Backend& backend, const std::string&) {
      Rig rig(backend);
      const ops::Routing out{rig.make(DType::i32, {1, 3}), rig.make(DType::f32, {1, 3})};
      backend.moe_route(rig.put(DType::f32, {1, 8}, Floats(8, 0.25f)), Tensor{}, spec, out);
      EXPECT_EQ(rig.get_ints(out.experts), (std::vector<int32_t>{0, 1, 2}));
    });
  }
}

// --- experts
// --------------------------------------------------------------------------------------

struct Format {
  std::string name;
  DType plain = DType::f32;
  std::optional<QuantFormat> weight, input;
  bool calibrated = false;
};

const QuantFormat kRow{Code::e4m3, grids::row, ScaleType::f32};
const QuantFormat kGroup{Code::e4m3, grids::group128, ScaleType::f32};
const QuantFormat kBlock{Code::e4m3, grids::block128, ScaleType::f32};
const QuantFormat kTensor{Code::e4m3, grids::tensor, ScaleType::f32};

const std::vector<Format> kFormats = {{"f32", DType::f32, {}, {}},
                                      {"bf16", DType::bf16, {}, {}},
                                      {"row", DType::f32, kRow, kRow},
                                      {"block", DType::f32, kBlock, kGroup},
                                      {"weights only", DType::f32, kRow, {}},
                                      {"calibrated", DType::f32, kTensor, kTensor, true}};

struct Matrix {
  int64_t out, in;
  Floats plain;
  std::optional<HostQuant> quant;
  Doubles values;
};

Matrix make_matrix(const Format& f, int64_t out, int64_t in, uint64_t seed) {
  Matrix m{out, in, {}, {}, {}};
  const Floats values = random_values(seed, out * in, 1.0f / std::sqrt(static_cast<float>(in)));
  if (f.weight) {
    m.quant = quantized(*f.weight, out, in, values);
    m.values = m.quant->values;
  } else {
    m.plain = rounded(f.plain, values);
    m.values = to_doubles(m.plain);
  }
  return m;
}

ops::Linear put(Rig& rig, const Format& f, const Matrix& m, float input_scale) {
  ops::Linear w;
  w.out = m.out;
  w.in = m.in;
  if (m.quant) {
    w.quant = rig.put(*m.quant);
  } else {
    w.plain = rig.put(f.plain, {m.out, m.in}, m.plain);
  }
  w.input = f.input;
  if (f.calibrated) {
    w.when = InputScale::calibrated;
    w.input_scale = rig.put(DType::f32, {1}, {input_scale});
  }
  return w;
}

struct Case {
  int64_t rows, hidden, inner, experts, top_k;
  Format format;
  DType activation;
  bool quantized_input = false;  // x comes with its codes
  std::string name() const {
    return fmt::format("rows={} {}->{} experts={}/{} {} x={}{}", rows, hidden, inner, top_k,
                       experts, format.name, octet::name_of(activation),
                       quantized_input ? " codes given" : "");
  }
};

constexpr float kInputScale = 0.02f, kHiddenScale = 0.05f;

void run_case(const Case& c) {
  const Format& f = c.format;
  struct Expert {
    Matrix gate, up, down;
  };
  std::vector<Expert> experts;
  for (int64_t e = 0; e < c.experts; ++e) {
    const auto seed = static_cast<uint64_t>(100 + e * 3);
    experts.push_back({make_matrix(f, c.inner, c.hidden, seed),
                       make_matrix(f, c.inner, c.hidden, seed + 1),
                       make_matrix(f, c.hidden, c.inner, seed + 2)});
  }
  const Floats x = rounded(c.activation, random_values(90, c.rows * c.hidden));
  Doubles xd = to_doubles(x);
  if (f.calibrated) {
    HostQuant q{*f.input, c.rows, c.hidden, std::vector<uint8_t>(x.size()), {kInputScale}, {}};
    quantize_with_scales(x, c.rows, c.hidden, q.format, q.scales, q.codes);
    for (size_t i = 0; i < xd.size(); ++i)
      xd[i] = double{fp8_decode(Code::e4m3, q.codes[i])} * double{kInputScale};
  } else if (f.input) {
    xd = quantized(*f.input, c.rows, c.hidden, x).values;
  }
  // Experts 1 and 3 get nothing; a token's experts come in no order.
  std::vector<int32_t> ids;
  Floats weights;
  const std::vector<int32_t> used =
      c.experts > 4 ? std::vector<int32_t>{5, 0, 4, 2, 7} : std::vector<int32_t>{2, 0};
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.top_k; ++i) {
      ids.push_back(used[static_cast<size_t>((r * 3 + i) % static_cast<int64_t>(used.size()))]);
      weights.push_back(0.2f + 0.1f * static_cast<float>((r + i * 2) % 7));
    }
  }
  Doubles want(static_cast<size_t>(c.rows * c.hidden));
  std::vector<Budget> budget(want.size());
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.top_k; ++i) {
      const Expert& e = experts[static_cast<size_t>(ids[static_cast<size_t>(r * c.top_k + i)])];
      const double weight = weights[static_cast<size_t>(r * c.top_k + i)];
      const Doubles row(xd.begin() + r * c.hidden, xd.begin() + (r + 1) * c.hidden);
      const oracle::Sums gate = oracle::linear(row, e.gate.values, {}, 1, c.inner, c.hidden);
      const oracle::Sums up = oracle::linear(row, e.up.values, {}, 1, c.inner, c.hidden);
      Doubles h, h_error;
      double most = 0.0;
      for (size_t j = 0; j < gate.value.size(); ++j) {
        h.push_back(oracle::silu(gate.value[j]) * up.value[j]);
        most = std::max(most, std::abs(h[j]));
        // FP32 sums in front of silu, whose slope is at most 1.1.
        h_error.push_back(1.1 * budgets::reordered_sum(c.hidden, gate.magnitude[j]).abs *
                              std::abs(up.value[j]) +
                          std::abs(oracle::silu(gate.value[j])) *
                              budgets::reordered_sum(c.hidden, up.magnitude[j]).abs);
      }
      const oracle::Sums y = oracle::linear(h, e.down.values, {}, 1, c.hidden, c.inner);
      // What rounding h costs: independent errors, six standard deviations.
      double relative = 0.0, absolute = 0.0;
      if (f.input) {
        relative = budgets::kE4m3Rounding;
        absolute = 0x1p-10 * (f.calibrated ? double{kHiddenScale} : most / 448.0);
      } else if (c.activation == DType::bf16) {
        relative = 3.0 * budgets::kBf16Rounding;  // gate, up and h may be BF16
      }
      for (int64_t d = 0; d < c.hidden; ++d) {
        const auto at = static_cast<size_t>(r * c.hidden + d);
        double variance = 0.0, error = 0.0;
        for (int64_t j = 0; j < c.inner; ++j) {
          const double w = e.down.values[static_cast<size_t>(d * c.inner + j)];
          const double step = relative * std::abs(h[static_cast<size_t>(j)]) + absolute;
          variance += step * step * w * w / 3.0;
          error += h_error[static_cast<size_t>(j)] * std::abs(w);
        }
        want[at] += weight * y.value[static_cast<size_t>(d)];
        budget[at].abs +=
            weight * (budgets::reordered_sum(c.inner + 8, y.magnitude[static_cast<size_t>(d)]).abs +
                      error + 6.0 * std::sqrt(variance));
        budget[at].rel = 4.0 * budgets::kF32Rounding;
      }
    }
  }

  ops::OpDesc desc{
      "moe_experts", c.rows,  c.inner,     c.hidden, f.weight ? dtype_of(f.weight->code) : f.plain,
      f.weight,      f.input, c.activation};
  for_each_kernel("moe_experts", desc, [&](ops::Backend& backend, const std::string& kernel) {
    Rig rig(backend);
    std::vector<ops::GatedMlp> mlps;
    for (const Expert& e : experts) {
      mlps.push_back({put(rig, f, e.gate, kInputScale), put(rig, f, e.up, kInputScale),
                      put(rig, f, e.down, kHiddenScale)});
    }
    ops::Activation input = rig.put(c.activation, {c.rows, c.hidden}, x);
    if (c.quantized_input) input.quant = rig.put(quantized(*f.input, c.rows, c.hidden, x));
    const ops::Routing routing{rig.put({c.rows, c.top_k}, ids),
                               rig.put(DType::f32, {c.rows, c.top_k}, weights)};
    const Tensor out = rig.make(c.activation, {c.rows, c.hidden});
    backend.moe_experts(input, routing, mlps, out);
    report(
        c.activation == DType::bf16 ? "moe to bf16" : "moe_experts", kernel, c.name(),
        worst(rig.get(out), want, [&](size_t i) { return with_output(budget[i], c.activation); }));
  });
}

TEST(Experts, FormatsAndShapes) {
  for (const Format& format : kFormats) {
    for (const DType activation : {DType::f32, DType::bf16}) {
      if (format.plain == DType::bf16 && activation == DType::f32) continue;
      run_case({1, 72, 48, 4, 1, format, activation});
      run_case({7, 130, 72, 8, 2, format, activation});
      run_case({40, 256, 192, 8, 3, format, activation});
      // Rows that vectors of 16 bytes fit, few tokens and many, and ragged ends.
      run_case({5, 272, 208, 8, 2, format, activation});
      run_case({40, 272, 208, 8, 3, format, activation});
      if (format.input && !format.calibrated)
        run_case({7, 130, 200, 8, 2, format, activation, true});
    }
  }
}

}  // namespace
}  // namespace octet::conformance
