// The fast mixture of experts: against double where nothing is quantized on the way, against the
// exact kernel where it is, and bit for bit against itself for other batches and thread counts.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backends/cpu/select.h"
#include "linear_problem.h"

namespace octet::cpu {
namespace {

using namespace test;

struct Config {
  Form weight = code_form(grids::row);
  std::optional<QuantFormat> input;
  InputScale when = InputScale::dynamic;
  int64_t hidden = 192, inner = 130, experts = 6, top_k = 2;
};

struct MoeProblem {
  Config config;
  int64_t tokens;
  std::vector<Stored> stored;
  std::vector<ops::GatedMlp> experts;
  std::vector<const Stored*> gate, up, down;  // by expert
  Stored x;
  std::vector<int32_t> ids;
  std::vector<float> weights, scales;

  MoeProblem(const Config& c, int64_t rows, uint32_t seed = 7) : config(c), tokens(rows) {
    stored.reserve(static_cast<size_t>(3 * c.experts));
    scales.resize(static_cast<size_t>(3 * c.experts));
    for (int64_t e = 0; e < c.experts; ++e) {
      ops::GatedMlp mlp;
      mlp.gate = linear(c.inner, c.hidden, seed);
      mlp.up = linear(c.inner, c.hidden, seed + 1);
      mlp.down = linear(c.hidden, c.inner, seed + 2);
      seed += 3;
      experts.push_back(mlp);
    }
    for (size_t e = 0; e < experts.size(); ++e) {
      gate.push_back(&stored[3 * e]);
      up.push_back(&stored[3 * e + 1]);
      down.push_back(&stored[3 * e + 2]);
    }
    x = store(random_values(tokens * c.hidden, seed), tokens, c.hidden, DType::bf16);
    std::mt19937 random(seed + 1);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> order(static_cast<size_t>(c.experts - 1));  // the last gets no token
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (int64_t i = 0; i < c.top_k; ++i) {
        ids.push_back(order[static_cast<size_t>(i)]);
        weights.push_back(0.1f + 0.3f * static_cast<float>(i));
      }
    }
  }
  ops::Linear linear(int64_t n, int64_t k, uint32_t seed) {
    stored.push_back(config.weight.make(random_values(n * k, seed, 0.1f), n, k, 1));
    ops::Linear w{.name = "expert", .role = Role::expert_gate_up, .out = n, .in = k};
    if (stored.back().quant) {
      w.quant = stored.back().quant;
    } else {
      w.plain = stored.back().tensor;
    }
    w.input = config.input;
    w.when = config.when;
    float& scale = scales[stored.size() - 1];
    scale = 0.01f + 0.001f * static_cast<float>(stored.size() % 2);
    if (config.when == InputScale::calibrated) w.input_scale = Tensor(&scale, DType::f32, {1});
    return w;
  }

  std::vector<float> run(const MoeRow& row, int64_t first, int64_t rows, int threads,
                         DType type = DType::f32) {
    const CpuCaps caps = detect_caps();
    ThreadPool pool(threads);
    const KernelContext context{pool, caps};
    const int64_t k = config.top_k;
    const ops::Routing routing{Tensor(ids.data() + first * k, DType::i32, {rows, k}),
                               Tensor(weights.data() + first * k, DType::f32, {rows, k})};
    std::vector<std::byte> memory(static_cast<size_t>(rows * config.hidden) * size_of(type));
    const Tensor out(memory.data(), type, {rows, config.hidden});
    row.launch(context, x.tensor.slice(first, rows), routing, experts, out);
    std::vector<float> values;
    for (int64_t i = 0; i < out.count(); ++i) {
      values.push_back(type == DType::f32 ? out.as<float>()[i] : to_float(out.as<bf16>()[i]));
    }
    return values;
  }

  std::vector<double> expected() const {
    const int64_t hidden = config.hidden, inner = config.inner;
    std::vector<double> out(static_cast<size_t>(tokens * hidden));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < config.top_k; ++i) {
        const auto assigned = static_cast<size_t>(t * config.top_k + i);
        const auto e = static_cast<size_t>(ids[assigned]);
        std::vector<double> h(static_cast<size_t>(inner));
        for (int64_t j = 0; j < inner; ++j) {
          double g = 0, u = 0;
          for (int64_t d = 0; d < hidden; ++d) {
            g += x.at(t, d) * gate[e]->at(j, d);
            u += x.at(t, d) * up[e]->at(j, d);
          }
          h[static_cast<size_t>(j)] = g / (1 + std::exp(-g)) * u;
        }
        for (int64_t d = 0; d < hidden; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < inner; ++j) sum += h[static_cast<size_t>(j)] * down[e]->at(d, j);
          out[static_cast<size_t>(t * hidden + d)] += weights[assigned] * sum;
        }
      }
    }
    return out;
  }
};

template <class A, class B>
double relative_error(const A& got, const B& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / size);
}

// Those of the table that can run here.
std::vector<MoeRow> rows() {
  CpuCaps caps = detect_caps();
  std::vector<MoeRow> out;
  for (const MoeRow& row : fast_moe_rows()) {
    ops::OpDesc plain{.op = "moe_experts", .m = 1, .n = 8, .k = 8};
    ops::OpDesc codes = plain;  // which a row may ask for; experts that differ it leaves to another
    codes.weight_format = codes.input_format = QuantFormat{Code::i8, grids::row};
    if (!row.refuses(plain, caps) || !row.refuses(codes, caps)) out.push_back(row);
  }
  return out;
}

std::vector<Config> quantizing() {
  return {{.input = QuantFormat{Code::e4m3, grids::row}},
          {.weight = code_form(grids::block128), .input = QuantFormat{Code::e4m3, grids::group128}},
          {.weight = code_form(grids::row, Code::i8), .input = QuantFormat{Code::i8, grids::row}},
          {.input = QuantFormat{Code::e4m3, grids::tensor}, .when = InputScale::calibrated}};
}

TEST(FastMoe, WithoutQuantizationAgreesWithDouble) {
  for (const MoeRow& row : rows()) {
    for (const Form& w : {bf16_form, f32_form, code_form(grids::row), code_form(grids::block128)}) {
      for (const int64_t tokens : {1, 5, 40}) {
        MoeProblem problem({.weight = w}, tokens);
        const auto expected = problem.expected();
        EXPECT_LT(relative_error(problem.run(row, 0, tokens, 2), expected), 1e-6)
            << row.name << " " << w.name << " " << tokens;
        EXPECT_LT(relative_error(problem.run(row, 0, tokens, 2, DType::bf16), expected), 3e-3)
            << row.name << " " << w.name << " " << tokens;
      }
    }
  }
}

TEST(FastMoe, WithQuantizedInputsAgreesWithTheExactKernel) {
  for (const MoeRow& row : rows()) {
    for (const Config& config : quantizing()) {
      for (const int64_t tokens : {1, 23}) {
        MoeProblem problem(config, tokens);
        const auto expected = problem.run(exact_moe_rows()[0], 0, tokens, 1);
        // Sums that round differently may move a code of the product to its neighbour.
        EXPECT_LT(relative_error(problem.run(row, 0, tokens, 2), expected), 2e-3)
            << row.name << " " << to_string(*config.input);
      }
    }
  }
}

TEST(FastMoe, ATokensBitsDependOnNothingElse) {
  std::vector<Config> configs = quantizing();
  configs.push_back({.weight = bf16_form});
  configs.push_back({.top_k = 4});
  for (const MoeRow& row : rows()) {
    for (const Config& config : configs) {
      MoeProblem problem(config, 70);
      const auto all = problem.run(row, 0, 70, 1);
      EXPECT_EQ(problem.run(row, 0, 70, 2), all) << row.name;
      for (const int64_t tokens : {1, 2, 9}) {
        for (const int threads : {1, 2, 3}) {
          const auto some = problem.run(row, 30, tokens, threads);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + 30 * config.hidden, some.size() * 4), 0)
              << row.name << " " << tokens << " tokens, " << threads << " threads";
        }
      }
    }
  }
}

// More rows than one turn of the scratch holds.
TEST(FastMoe, ManyTokensRunInTurns) {
  for (const MoeRow& row : rows()) {
    MoeProblem problem({.hidden = 64, .inner = 24, .experts = 5, .top_k = 4}, 1100);
    const auto all = problem.run(row, 0, 1100, 2);
    const auto last = problem.run(row, 1090, 10, 1);
    EXPECT_EQ(std::memcmp(last.data(), all.data() + 1090 * 64, last.size() * 4), 0) << row.name;
  }
}

}  // namespace
}  // namespace octet::cpu
