// norm_linear_group, linear_to_stream and norm_mlp_to_stream against their parts: the same stream,
// and outputs that differ by what another order of summation and a code on the other side of a
// rounding may do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/oracle.h"
#include "conformance/rig.h"

namespace octet::conformance {
namespace {

struct Case {
  int64_t m, k;
  std::vector<int64_t> outputs;
  QuantFormat weight;
  std::optional<QuantFormat> input;
  bool has_delta = true, calibrated = false;
  DType norm = DType::f32;
  int64_t from = 0;  // inputs of a linear whose result is added to the stream before; 0: none
  std::string name() const {
    return fmt::format("m={} k={}{} {} weights w={} x={}{}{} norm={}", m, k,
                       from ? fmt::format(" from {}", from) : "", outputs.size(),
                       octet::to_string(weight), input ? octet::to_string(*input) : "bf16",
                       calibrated ? " calibrated" : "", has_delta ? "" : " no delta",
                       name_of(norm));
  }
};

constexpr QuantFormat kRow{Code::e4m3, grids::row, ScaleType::f32};
constexpr QuantFormat kTensor{Code::e4m3, grids::tensor, ScaleType::f32};
constexpr QuantFormat kBlock{Code::e4m3, grids::block128, ScaleType::f32};
constexpr QuantFormat kGroup{Code::e4m3, grids::group128, ScaleType::f32};

void run_case(const Case& c) {
  for_each_backend_and_fastest([&](ops::Backend& backend, const std::string& name) {
    Rig rig(backend);
    const Shape shape{c.m, c.k};
    const Floats x = random_values(31, c.m * c.k), d = random_values(32, c.m * c.k, 0.5f);
    const ops::NormWeight norm{rig.put(c.norm, {c.k}, random_values(33, c.k)), 1e-5f};
    std::vector<HostQuant> hosts;
    std::vector<ops::Linear> linears(c.outputs.size());
    for (size_t i = 0; i < linears.size(); ++i) {
      ops::Linear& w = linears[i];
      w.out = c.outputs[i];
      w.in = c.k;
      hosts.push_back(quantized(c.weight, w.out, c.k, random_values(40 + i, w.out * c.k, 0.25f)));
      w.quant = rig.put(hosts.back());
      w.input = c.input;
      if (i == 0) w.bias = rig.put(DType::bf16, {w.out}, random_values(50, w.out));
      if (c.calibrated) {
        w.when = InputScale::calibrated;
        w.input_scale = rig.put(DType::f32, {1}, {0.0625f});
      }
    }
    // What is added to the stream comes from this one.
    ops::Linear before;
    before.out = c.k;
    before.in = c.from;
    const HostQuant before_codes =
        quantized(c.weight, c.k, c.from, random_values(60, c.k * c.from, 0.25f));
    if (c.from > 0) {
      before.quant = rig.put(before_codes);
      before.input = c.input;
      before.bias = rig.put(DType::bf16, {c.k}, random_values(61, c.k));
    }
    // The first weight alone has a bias.
    std::vector<const ops::Linear*> ws;
    for (const ops::Linear& w : linears) ws.push_back(&w);

    struct Run {
      Tensor stream;
      std::vector<Tensor> outs;
    };
    const auto run = [&](const auto& linear_to_stream, const auto& norm_linear_group) {
      ops::ResidualStream stream{.sum = rig.put(DType::bf16, shape, x),
                                 .spare = rig.make(DType::bf16, shape),
                                 .room = rig.make(DType::bf16, shape)};
      if (c.k % ops::kMomentColumns == 0) {
        stream.moments = rig.make(DType::f32, {c.m, c.k / ops::kMomentColumns, 2});
      }
      if (c.from > 0) {
        const Tensor input = rig.put(DType::bf16, {c.m, c.from}, random_values(62, c.m * c.from));
        linear_to_stream(ops::Activation(input), before, stream, norm);
      } else if (c.has_delta) {
        stream.delta = rig.put(DType::bf16, shape, d);
      }
      ops::Activation normed{rig.make(DType::bf16, shape)};
      if (c.input && !c.calibrated) normed.quant = rig.make(*c.input, c.m, c.k);
      Run result;
      for (const int64_t n : c.outputs) result.outs.push_back(rig.make(DType::bf16, {c.m, n}));
      norm_linear_group(stream, norm, normed, ws, result.outs);
      EXPECT_FALSE(stream.delta);
      result.stream = stream.sum;
      return result;
    };
    const Run fused = run([&](auto&&... args) { backend.linear_to_stream(args...); },
                          [&](auto&&... args) { backend.norm_linear_group(args...); });
    const Run parts =
        run([&](auto&&... args) { backend.ops::Backend::linear_to_stream(args...); },
            [&](auto&&... args) { backend.ops::Backend::norm_linear_group(args...); });
    report("norm_linear_group", name, c.name() + " stream",
           same(rig.get(fused.stream) == rig.get(parts.stream)));

    // What was multiplied, nearly: for the size of the sums.
    const Floats stream = rig.get(parts.stream), weight = rig.get(norm.weight);
    for (size_t i = 0; i < ws.size(); ++i) {
      const int64_t n = c.outputs[i];
      std::vector<Budget> budget;
      for (int64_t row = 0; row < c.m; ++row) {
        double squares = 0.0;
        for (int64_t k = 0; k < c.k; ++k)
          squares += std::pow(double{stream[static_cast<size_t>(row * c.k + k)]}, 2);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(c.k) + 1e-5);
        for (int64_t o = 0; o < n; ++o) {
          double magnitude = 0.0, most = 0.0;
          for (int64_t k = 0; k < c.k; ++k) {
            const double product = std::abs(stream[static_cast<size_t>(row * c.k + k)] * factor *
                                            weight[static_cast<size_t>(k)] *
                                            hosts[i].values[static_cast<size_t>(o * c.k + k)]);
            magnitude += product;
            most = std::max(most, product);
          }
          Budget b = budgets::reordered_sum(c.k, magnitude);
          b.abs += 2 * budgets::kE4m3Rounding * most;  // one code of x that rounds the other way
          budget.push_back(with_output(b, DType::bf16));
        }
      }
      const Floats want = rig.get(parts.outs[i]);
      report("norm_linear_group", name, fmt::format("{} output {}", c.name(), i),
             worst(rig.get(fused.outs[i]), to_doubles(want), [&](size_t j) { return budget[j]; }));
    }
  });
}

TEST(NormLinearGroup, EqualsItsParts) {
  for (const int64_t m : {1, 2, 3, 4, 9}) {
    for (const int64_t k : {128, 272, 2048}) {
      run_case({m, k, {48, 16, 33}, kRow, kRow});
      if (k % 128 == 0) run_case({m, k, {256, 128}, kBlock, kGroup});
    }
  }
  run_case({1, 8192, {64}, kRow, kRow});
  run_case({2, 4096, {40, 40}, kRow, kRow});
  run_case({1, 4096, {5000, 24}, kRow, kRow});  // several tiles a block
  run_case({1, 512, {64, 64}, kTensor, kTensor});
  run_case({1, 512, {64, 64}, kRow, kTensor, true, true});
  run_case({1, 512, {64, 64}, kRow, kRow, false});
  run_case({1, 512, {64, 64}, kRow, kRow, true, false, DType::bf16});
  run_case({1, 512, {64, 64}, kRow, std::nullopt});
}

// A linear into the stream, whose moments the next norm may use.
TEST(LinearToStream, EqualsItsParts) {
  const auto from = [](Case c, int64_t inputs) {
    c.from = inputs;
    run_case(c);
  };
  for (const int64_t m : {1, 2, 3, 4, 5}) {
    for (const int64_t k : {32, 256, 272, 2048}) {  // 272: moments of an odd number of tiles
      from({m, k, {48, 16, 33}, kRow, kRow}, 208);
      if (k % 128 == 0) from({m, k, {256, 128}, kBlock, kGroup}, 384);
    }
    from({m, 8192, {64}, kRow, kRow}, 512);    // more than registers hold
    from({m, 2048, {64}, kRow, kRow}, 20480);  // as codes in shared memory, and in slices
  }
  from({1, 4096, {5000, 24}, kRow, kRow}, 4096);
  from({2, 4096, {40, 40}, kRow, kRow}, 14336);
  from({1, 512, {64, 64}, kTensor, kTensor}, 256);
  from({1, 512, {64, 64}, kRow, kRow, true, false, DType::bf16}, 256);
  from({1, 512, {64, 64}, kRow, std::nullopt}, 256);
}

struct MlpCase {
  int64_t m, k, n;  // rows, hidden and intermediate columns
  QuantFormat weight = kRow;
  std::optional<QuantFormat> input = kRow;
  bool measured = true, calibrated = false;
  std::string name() const {
    return fmt::format("m={} k={} n={} w={} x={}{}{}", m, k, n, octet::to_string(weight),
                       input ? octet::to_string(*input) : "bf16", measured ? "" : " not measured",
                       calibrated ? " calibrated" : "");
  }
};

// The parts round what down reads to BF16, as a backend does that makes it where gate and up are
// summed: then not a bit may differ.
void run_mlp(const MlpCase& c) {
  for_each_backend_and_fastest([&](ops::Backend& backend, const std::string& name) {
    Rig rig(backend);
    const ops::NormWeight own{rig.put(DType::f32, {c.k}, random_values(71, c.k)), 1e-5f};
    const ops::NormWeight next{rig.put(DType::f32, {c.k}, random_values(72, c.k)), 1e-5f};
    const auto linear = [&](uint64_t seed, int64_t out, int64_t in) {
      ops::Linear w;
      w.out = out;
      w.in = in;
      w.quant = rig.put(quantized(c.weight, out, in, random_values(seed, out * in, 0.25f)));
      w.input = c.input;
      w.bias = rig.put(DType::bf16, {out}, random_values(seed + 1, out));
      if (c.calibrated) {
        w.when = InputScale::calibrated;
        w.input_scale = rig.put(DType::f32, {1}, {0.0625f});
      }
      return w;
    };
    const ops::Linear before = linear(80, c.k, 256);
    const ops::GatedMlp mlp{linear(82, c.n, c.k), linear(84, c.n, c.k), linear(86, c.k, c.n)};
    const auto run = [&](const auto& norm_mlp_to_stream) {
      const Shape shape{c.m, c.k};
      ops::ResidualStream stream{
          .sum = rig.put(DType::bf16, shape, random_values(73, c.m * c.k)),
          .spare = rig.make(DType::bf16, shape),
          .room = rig.make(DType::bf16, shape),
          .moments = rig.make(DType::f32, {c.m, c.k / ops::kMomentColumns, 2})};
      if (c.measured) {
        const Tensor input = rig.put(DType::bf16, {c.m, 256}, random_values(74, c.m * 256));
        backend.linear_to_stream(ops::Activation(input), before, stream, own);
      }
      ops::MlpRoom room{.normed = rig.make(DType::bf16, shape),
                        .gate = rig.make(DType::bf16, {c.m, c.n}),
                        .up = rig.make(DType::bf16, {c.m, c.n}),
                        .hidden = rig.make(DType::bf16, {c.m, c.n})};
      if (c.input && !c.calibrated) room.normed.quant = rig.make(*c.input, c.m, c.k);
      norm_mlp_to_stream(stream, own, mlp, room, next);
      if (stream.delta) backend.add(stream.sum, stream.delta, stream.sum);
      return rig.get(stream.sum);
    };
    const Floats fused = run([&](auto&&... args) { backend.norm_mlp_to_stream(args...); });
    const Floats parts =
        run([&](auto&&... args) { backend.ops::Backend::norm_mlp_to_stream(args...); });
    report("norm_mlp_to_stream", name, c.name(), same(fused == parts));
  });
}

TEST(NormMlpToStream, EqualsItsParts) {
  for (const int64_t m : {1, 2, 3, 4, 5}) {
    for (const int64_t n : {256, 768, 2304}) run_mlp({m, 512, n});
    run_mlp({m, 256, 272});  // no multiple of 256
  }
  run_mlp({1, 4096, 14336});
  run_mlp({2, 4096, 2560});
  run_mlp({4, 2048, 8192});
  run_mlp({.m = 1, .k = 512, .n = 512, .measured = false});
  run_mlp({.m = 2, .k = 512, .n = 512, .input = kTensor, .calibrated = true});
  run_mlp({.m = 1, .k = 512, .n = 512, .weight = kTensor, .input = kTensor});
  run_mlp({.m = 1, .k = 512, .n = 512, .weight = kBlock, .input = kGroup});
  run_mlp({.m = 1, .k = 512, .n = 512, .input = std::nullopt});
}

}  // namespace
}  // namespace octet::conformance
