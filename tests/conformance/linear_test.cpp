// linear and head_linear: every weight format with every input format, on shapes that fit nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/oracle.h"
#include "conformance/rig.h"

namespace octet::conformance {
namespace {

// What a sum of so many terms may be off by, in the arithmetic of the kernel that `backend`
// chooses. "fp8_mma" begins the names of the orders in which FP8 tensor cores sum.
using SumBudget = Budget (*)(int64_t terms, double magnitude);
SumBudget sum_budget(const ops::Backend& backend, const ops::OpDesc& desc) {
  const bool tensor_cores = backend.choose(desc).reduction_id.starts_with("fp8_mma");
  return tensor_cores ? budgets::fp8_tensor_core_sum : budgets::reordered_sum;
}

// Weights may lie in a mapped file, at any byte; the memory of a GPU never does.
bool may_misalign(const ops::Backend& backend) {
  return backend.info().device.kind == DeviceKind::cpu;
}

struct Operand {
  DType type = DType::f32;            // when plain
  std::optional<QuantFormat> format;  // when quantized
};
std::string to_string(const Operand& operand) {
  return operand.format ? octet::to_string(*operand.format) : std::string(name_of(operand.type));
}

Operand plain(DType type) {
  return {type, {}};
}
Operand coded(Code fp8, ScaleGrid grid, ScaleType scale = ScaleType::f32) {
  return {DType::f32, QuantFormat{fp8, grid, scale}};
}

const std::vector<Operand> kWeights = {plain(DType::f32),
                                       plain(DType::bf16),
                                       plain(DType::f16),
                                       coded(Code::e4m3, grids::tensor),
                                       coded(Code::e4m3, grids::row),
                                       coded(Code::e4m3, grids::group128),
                                       coded(Code::e4m3, grids::block128),
                                       coded(Code::e4m3, {1, 32}, ScaleType::e8m0),
                                       coded(Code::e5m2, grids::row),
                                       coded(Code::e5m2, grids::block128, ScaleType::e8m0),
                                       coded(Code::e4m3, grids::tensor, ScaleType::unit),
                                       coded(Code::i8, grids::row),
                                       coded(Code::i8, grids::group128),
                                       coded(Code::i8, {1, 32})};

const std::vector<Operand> kInputs = {plain(DType::f32),
                                      plain(DType::bf16),
                                      coded(Code::e4m3, grids::tensor),
                                      coded(Code::e4m3, grids::row),
                                      coded(Code::e4m3, grids::group128),
                                      coded(Code::e4m3, {1, 32}, ScaleType::e8m0),
                                      coded(Code::e5m2, grids::row),
                                      coded(Code::i8, grids::row)};

// m, n, k.
constexpr int64_t kShapes[][3] = {{1, 1, 72},    {7, 1, 130},   {1, 130, 576}, {7, 72, 130},
                                  {3, 257, 512}, {33, 96, 640}, {1, 16, 16},   {64, 48, 72},
                                  {1, 40, 1280}, {4, 24, 768},  {2, 128, 128}, {130, 33, 200}};

struct Case {
  int64_t m, n, k;
  Operand weight, input;
  DType out = DType::f32, bias = DType::f32;
  bool has_bias = false, misalign = false;
  std::string name() const {
    return fmt::format("m={} n={} k={} w={} x={} out={}{}{}", m, n, k, to_string(weight),
                       to_string(input), name_of(out),
                       has_bias ? fmt::format(" bias={}", name_of(bias)) : "",
                       misalign ? " misaligned" : "");
  }
};

// A weight or an input: values for the oracle and a place on the device.
struct Data {
  Doubles values;
  Floats plain;
  std::optional<HostQuant> quant;
};
Data make_data(const Operand& operand, int64_t rows, int64_t cols, uint64_t seed) {
  Data data;
  Floats values = random_values(seed, rows * cols);
  // Rows of different size, so that a scale taken from a wrong row is seen.
  for (int64_t r = 0; r < rows; ++r) {
    const float factor = std::ldexp(1.0f, static_cast<int>(r * 7 % 11) - 5);
    for (int64_t c = 0; c < cols; ++c) values[static_cast<size_t>(r * cols + c)] *= factor;
  }
  if (operand.format) {
    data.quant = quantized(*operand.format, rows, cols, values);
    data.values = data.quant->values;
  } else {
    data.plain = rounded(operand.type, values);
    data.values = to_doubles(data.plain);
  }
  return data;
}

void run_case(const Case& c) {
  const auto seed = static_cast<uint64_t>(c.m * 1000003 + c.n * 1009 + c.k);
  const Data weight = make_data(c.weight, c.n, c.k, seed),
             input = make_data(c.input, c.m, c.k, seed + 1);
  const Floats bias = c.has_bias ? rounded(c.bias, random_values(seed + 2, c.n)) : Floats{};
  const oracle::Sums want =
      oracle::linear(input.values, weight.values, to_doubles(bias), c.m, c.n, c.k);

  ops::OpDesc desc;
  desc.op = "linear";
  desc.m = c.m;
  desc.n = c.n;
  desc.k = c.k;
  desc.weight = c.weight.format ? dtype_of(c.weight.format->code) : c.weight.type;
  desc.weight_format = c.weight.format;
  desc.input_format = c.input.format;
  desc.activation = c.input.format ? DType::bf16 : c.input.type;
  for_each_kernel("linear", desc, [&](ops::Backend& backend, const std::string& kernel) {
    Rig rig(backend);
    const SumBudget budget = sum_budget(backend, desc);
    ops::Linear w;
    w.name = "conformance";
    w.out = c.n;
    w.in = c.k;
    const bool misalign = c.misalign && may_misalign(backend);
    if (weight.quant) {
      w.quant = rig.put(*weight.quant, misalign);
    } else {
      w.plain = rig.put(c.weight.type, {c.n, c.k}, weight.plain, misalign);
    }
    if (c.has_bias) w.bias = rig.put(c.bias, {c.n}, bias, misalign);
    w.input = c.input.format;
    ops::Activation x;
    if (input.quant) {
      x.quant = rig.put(*input.quant);
    } else {
      x.plain = rig.put(c.input.type, {c.m, c.k}, input.plain);
    }
    const Tensor out = rig.make(c.out, {c.m, c.n});
    backend.linear(x, w, out);
    report(c.out == DType::bf16 ? "linear to bf16" : "linear", kernel, c.name(),
           worst(rig.get(out), want.value,
                 [&](size_t i) { return with_output(budget(c.k + 1, want.magnitude[i]), c.out); }));
  });
}

TEST(Linear, EveryFormatOnOddShapes) {
  int index = 0;
  for (const Operand& weight : kWeights) {
    for (const Operand& input : kInputs) {
      for (const auto& shape : kShapes) {
        // The rest of the axes takes turns.
        Case c{shape[0], shape[1], shape[2], weight, input};
        c.out = index % 2 ? DType::bf16 : DType::f32;
        c.has_bias = index % 3 == 0;
        c.bias = index % 6 == 0 ? DType::f32 : DType::bf16;
        c.misalign = index % 5 == 0;
        run_case(c);
        ++index;
      }
    }
  }
}

// Positive operands do not cancel: where an accumulator is too narrow, the error grows with K.
TEST(Linear, ErrorDoesNotGrowWithK) {
  for (const int64_t k : {512, 4096, 7168}) {
    for (const Operand& input :
         {coded(Code::e4m3, grids::row), coded(Code::e4m3, grids::group128)}) {
      Case c{2, 16, k,
             coded(Code::e4m3, input.format->grid == grids::row ? grids::row : grids::block128),
             input};
      Floats w = random_values(1, c.n * k), x = random_values(2, c.m * k);
      for (float& v : w) v = std::abs(v);
      for (float& v : x) v = std::abs(v);
      const HostQuant wq = quantized(*c.weight.format, c.n, k, w);
      const HostQuant xq = quantized(*c.input.format, c.m, k, x);
      const oracle::Sums want = oracle::linear(xq.values, wq.values, {}, c.m, c.n, k);
      ops::OpDesc desc{"linear",       c.m,        c.n, k, DType::e4m3, c.weight.format,
                       c.input.format, DType::bf16};
      for_each_kernel("linear", desc, [&](ops::Backend& backend, const std::string& kernel) {
        Rig rig(backend);
        const SumBudget budget = sum_budget(backend, desc);
        ops::Linear lin;
        lin.out = c.n;
        lin.in = k;
        lin.quant = rig.put(wq);
        lin.input = c.input.format;
        const Tensor out = rig.make(DType::f32, {c.m, c.n});
        backend.linear(rig.put(xq), lin, out);
        report("linear", kernel, "all positive, " + c.name(),
               worst(rig.get(out), want.value,
                     [&](size_t i) { return budget(k, want.magnitude[i]); }));
      });
    }
  }
}

// The input's form: quantized where the linear wants it, once, by the rule of numerics/quantize.h.
TEST(Linear, QuantizesItsInput) {
  const int64_t m = 5, n = 24, k = 200;
  for (const ScaleGrid grid : {grids::row, grids::group128, grids::tensor}) {
    for (const bool calibrated : {false, true}) {
      if (calibrated && grid != grids::tensor) continue;
      const QuantFormat format{Code::e4m3, grid, ScaleType::f32};
      const Floats x = rounded(DType::bf16, random_values(3, m * k, 3.0f));
      const HostQuant w =
          quantized({Code::e4m3, grids::row, ScaleType::f32}, n, k, random_values(4, n * k));
      HostQuant xq = quantized(format, m, k, x);
      if (calibrated) {
        xq.scales[0] = 0.03f;
        quantize_with_scales(x, m, k, format, xq.scales, xq.codes);
        for (size_t i = 0; i < xq.values.size(); ++i) {
          xq.values[i] = double{fp8_decode(format.code, xq.codes[i])} * double{xq.scales[0]};
        }
      }
      const oracle::Sums want = oracle::linear(xq.values, w.values, {}, m, n, k);
      ops::OpDesc desc{"linear", m, n, k, DType::e4m3, w.format, format, DType::bf16};
      for_each_kernel("linear", desc, [&](ops::Backend& backend, const std::string& kernel) {
        Rig rig(backend);
        const SumBudget budget = sum_budget(backend, desc);
        ops::Linear lin;
        lin.out = n;
        lin.in = k;
        lin.quant = rig.put(w);
        lin.input = format;
        if (calibrated) {
          lin.when = InputScale::calibrated;
          lin.input_scale = rig.put(DType::f32, {1}, {0.03f});
        }
        const Tensor out = rig.make(DType::f32, {m, n});
        backend.linear(rig.put(DType::bf16, {m, k}, x), lin, out);
        report("linear", kernel,
               "quantizes " + octet::to_string(format) + (calibrated ? " calibrated" : ""),
               worst(rig.get(out), want.value,
                     [&](size_t i) { return budget(k, want.magnitude[i]); }));
      });
    }
  }
}

TEST(HeadLinear, SixteenBitWeights) {
  for (const DType weight : {DType::bf16, DType::f16, DType::f32}) {
    for (const DType activation : {DType::bf16, DType::f32}) {
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
               {1, 1, 72}, {1, 1003, 576}, {7, 130, 130}, {16, 96, 64}}) {
        const Floats w = rounded(weight, random_values(5, n * k));
        const Floats x = rounded(activation, random_values(6, m * k));
        const oracle::Sums want = oracle::linear(to_doubles(x), to_doubles(w), {}, m, n, k);
        ops::OpDesc desc{"head_linear", m, n, k, weight, {}, {}, activation};
        for_each_kernel("head_linear", desc, [&](ops::Backend& backend, const std::string& kernel) {
          Rig rig(backend);
          const SumBudget budget = sum_budget(backend, desc);
          ops::Linear lin;
          lin.out = n;
          lin.in = k;
          lin.plain = rig.put(weight, {n, k}, w, may_misalign(backend));
          const Tensor out = rig.make(DType::f32, {m, n});
          backend.head_linear(rig.put(activation, {m, k}, x), lin, out);
          report("head_linear", kernel,
                 fmt::format("m={} n={} k={} w={} x={}", m, n, k, name_of(weight),
                             name_of(activation)),
                 worst(rig.get(out), want.value,
                       [&](size_t i) { return budget(k, want.magnitude[i]); }));
        });
      }
    }
  }
}

}  // namespace
}  // namespace octet::conformance
