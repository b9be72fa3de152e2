// The fast linears against plain loops in double: every form of weight and input, ragged shapes,
// unaligned weights; and the promise that a row's bits depend on neither its batch nor the threads.
#include "backends/cpu/kernels/fast_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "backends/cpu/select.h"
#include "linear_problem.h"

namespace octet::cpu {
namespace {

using namespace test;

std::vector<Form> inputs() {
  return {bf16_form,
          f32_form,
          code_form(grids::row),
          code_form(grids::group128),
          code_form(grids::tensor),
          code_form(grids::row, Code::e5m2),
          code_form(grids::group128, Code::e4m3, ScaleType::e8m0),
          code_form(grids::row, Code::i8)};
}
std::vector<Form> weights() {
  return {bf16_form,
          f16_form,
          f32_form,
          code_form(grids::row),
          code_form(grids::tensor),
          code_form(grids::block128),
          code_form(grids::group128),
          code_form(grids::row, Code::e5m2),
          code_form(grids::tensor, Code::e4m3, ScaleType::unit),
          code_form(grids::row, Code::i8),
          code_form(grids::group128, Code::i8)};
}

// Rows of the table, by capabilities, so that each of them runs on this machine.
struct Rows {
  CpuCaps caps;
  std::span<const LinearRow> rows;
};
Rows all_rows() {
  return {detect_caps(), fast_linear_rows()};
}

// Rows [first, first + rows) of the problem's output; all of them if `rows` is not given.
std::vector<float> run(const LinearRow& row, const CpuCaps& caps, const LinearProblem& problem,
                       DType type, int threads, int64_t first = 0, int64_t rows = 0) {
  if (rows == 0) rows = problem.m;
  ThreadPool pool(threads);
  const KernelContext context{pool, caps};
  const auto count = static_cast<size_t>(rows * problem.n);
  std::vector<std::byte> memory(count * size_of(type));
  const Tensor out(memory.data(), type, {rows, problem.n});
  ops::Activation x = problem.input();
  if (x.plain) x.plain = x.plain.slice(first, rows);
  if (x.quant) x.quant = x.quant.slice_rows(first, rows);
  launch(row, context, x, problem.linear, out);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (type == DType::f32) {
      values[i] = out.as<float>()[i];
    } else {
      values[i] = to_float(out.as<bf16>()[i]);
    }
  }
  return values;
}

// Runs every row of the table that takes the problem.
void expect_close(const LinearProblem& problem, std::initializer_list<DType> types) {
  const Rows all = all_rows();
  const auto expected = problem.expected();
  for (const LinearRow& row : all.rows) {
    if (row.refuses(problem.desc(), all.caps)) continue;
    for (const DType type : types) {
      const std::vector<float> out = run(row, all.caps, problem, type, 2);
      double worst = 0;
      for (size_t i = 0; i < out.size(); ++i) {
        const double rounding = type == DType::f32 ? 0 : 0x1p-8;
        // FP32 over 8 lanes or more: a few units in the last place of the sum of magnitudes.
        const double budget =
            expected[i].magnitude * 2e-6 + std::abs(expected[i].sum) * rounding + 1e-30;
        worst = std::max(worst, std::abs(out[i] - expected[i].sum) / budget);
      }
      EXPECT_LT(worst, 1.0) << row.name << " " << to_string(problem.desc());
    }
  }
}

TEST(FastLinear, EveryFormAgreesWithDouble) {
  for (const Form& w : weights()) {
    for (const Form& x : inputs()) {
      for (const int64_t k : {72, 130, 576}) {
        for (const int64_t m : {1, 3, 7}) {
          expect_close(LinearProblem(x, w, m, 9, k, true, 1), {DType::f32, DType::bf16});
        }
      }
    }
  }
}

TEST(FastLinear, RaggedShapes) {
  for (const Form& w : {bf16_form, code_form(grids::row), code_form(grids::block128)}) {
    for (const int64_t n : {1, 3, 130}) {
      for (const int64_t k : {1, 8, 63, 72, 129, 2500}) {
        for (const int64_t m : {1, 2, 7, 33}) {
          expect_close(LinearProblem(bf16_form, w, m, n, k, false, n % 2), {DType::f32});
        }
      }
    }
  }
}

// Each row of the table computes all rows of x at once and then some of them alone.
void expect_same_bits(const LinearProblem& whole, std::initializer_list<int64_t> counts) {
  const Rows all = all_rows();
  for (const LinearRow& row : all.rows) {
    if (row.refuses(whole.desc(), all.caps)) continue;
    const std::vector<float> expected = run(row, all.caps, whole, DType::f32, 1);
    for (const int64_t count : counts) {
      const int64_t first = (whole.m - count) / 2;
      const int threads = 1 + static_cast<int>(count % 3);
      const auto got = run(row, all.caps, whole, DType::f32, threads, first, count);
      EXPECT_EQ(std::memcmp(got.data(), expected.data() + first * whole.n, got.size() * 4), 0)
          << row.name << " " << to_string(whole.desc()) << " " << count << " rows, " << threads
          << " threads";
    }
  }
}

TEST(FastLinear, ARowsBitsDependOnNothingElse) {
  for (const Form& w : weights()) {
    for (const Form& x : {bf16_form, code_form(grids::row), code_form(grids::group128)}) {
      for (const int64_t k : {200, 2112}) {
        expect_same_bits(LinearProblem(x, w, 61, 38, k), {1, 2, 3, 4, 5, 6, 8, 17, 25, 48});
      }
    }
  }
}

// More columns than a kernel keeps at once, by one thread; with scales along k, by several.
TEST(FastLinear, ARowsBitsDependOnNothingElseInManyColumns) {
  for (const Form& w : {code_form(grids::row), code_form(grids::group128), bf16_form,
                        code_form(grids::row, Code::e5m2), code_form(grids::row, Code::i8)}) {
    expect_same_bits(LinearProblem(code_form(grids::row), w, 40, 2215, 130), {1, 2, 3, 16, 17});
  }
  for (const Form& w : {code_form(grids::block128), code_form(grids::group128)}) {
    expect_same_bits(LinearProblem(code_form(grids::group128), w, 40, 299, 2500), {1, 2, 15, 33});
  }
}

// Several linears of one input at once, of several types, against each of them alone.
TEST(FastLinear, LinearsOfOneInputAreThoseAlone) {
  const Rows all = all_rows();
  for (const LinearRow& row : all.rows) {
    for (const auto& [m, k] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 72}, {5, 640}, {70, 640}}) {
      const LinearProblem problems[] = {
          LinearProblem(code_form(grids::row), code_form(grids::row), m, 38, k, false, 0, 1),
          LinearProblem(code_form(grids::row), code_form(grids::block128), m, 130, k, true, 0, 1),
          LinearProblem(code_form(grids::row), bf16_form, m, 9, k, false, 0, 1)};
      if (row.refuses(problems[0].desc(), all.caps)) continue;
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        std::vector<std::vector<float>> memory;
        std::vector<const ops::Linear*> weights;
        std::vector<Tensor> outs;
        for (const LinearProblem& problem : problems) {
          weights.push_back(&problem.linear);
          memory.emplace_back(static_cast<size_t>(m * problem.n));
          outs.emplace_back(memory.back().data(), DType::f32, octet::Shape{m, problem.n});
        }
        row.launch(KernelContext{pool, all.caps}, problems[0].input(), weights, outs);
        for (size_t i = 0; i < memory.size(); ++i) {
          EXPECT_EQ(memory[i], run(row, all.caps, problems[i], DType::f32, 1))
              << row.name << " " << problems[i].w_form.name << " " << m << " x " << k;
        }
      }
    }
  }
}

// More rows than are packed at once.
TEST(FastLinear, ManyRowsRunInTurns) {
  expect_same_bits(LinearProblem(bf16_form, code_form(grids::row), 1001, 12, 72), {1, 481});
}

TEST(FastLinear, NanCodesGiveNan) {
  const Rows all = all_rows();
  for (const LinearRow& row : all.rows) {
    for (const int64_t m : {1, 9}) {
      LinearProblem problem(bf16_form, code_form(grids::row), m, 8, 100);
      if (row.refuses(problem.desc(), all.caps)) continue;
      auto* codes = problem.w.tensor.as<uint8_t>();
      codes[2 * 100 + 3] = 0x7F;
      codes[5 * 100 + 99] = 0xFF;
      const std::vector<float> out = run(row, all.caps, problem, DType::bf16, 1);
      for (int64_t i = 0; i < m * 8; ++i) {
        EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i % 8 == 2 || i % 8 == 5) << row.name;
      }
    }
  }
}

// Rows of x with a single one give columns of W as they are: every E4M3 code, in rows of W that
// have normal values alone, in rows that have others, and in rows that have a NaN. Enough of W that
// long streams of it are read, where few rows of x are.
TEST(FastLinear, EveryE4m3CodeIsExact) {
  constexpr int64_t n = 280, k = 192;
  LinearProblem problem(bf16_form, code_form(grids::tensor, Code::e4m3, ScaleType::unit), k, n, k);
  std::mt19937 random(1);
  auto* const codes = problem.w.tensor.as<uint8_t>();
  std::array<bool, 256> seen{};
  std::array<bool, n> has_nan{};
  for (int64_t i = 0; i < n * k; ++i) {
    const int64_t row = i / k;
    do {
      codes[i] = static_cast<uint8_t>(random());
    } while ((codes[i] & 0x7F) == 0x7F || (row < 128 && (codes[i] & 0x7F) < 8));
    if (row >= 264 && i % k == row % k) codes[i] = row % 2 == 0 ? 0x7F : 0xFF;
    has_nan[static_cast<size_t>(row)] |= (codes[i] & 0x7F) == 0x7F;
    seen[codes[i]] = true;
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](bool x) { return x; }));
  for (int64_t i = 0; i < k * k; ++i) {
    problem.x.tensor.as<bf16>()[i] = to_bf16(i / k == i % k ? 1.0f : 0.0f);
  }
  const Rows all = all_rows();
  for (const LinearRow& row : all.rows) {
    if (row.refuses(problem.desc(), all.caps)) continue;
    for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{24}, k}) {
      for (int64_t first = 0; first < k; first += rows) {
        const auto out = run(row, all.caps, problem, DType::f32, 1, first, rows);
        for (int64_t i = 0; i < rows * n; ++i) {
          const int64_t column = i % n;
          const float got = out[static_cast<size_t>(i)];
          if (has_nan[static_cast<size_t>(column)]) {
            ASSERT_TRUE(std::isnan(got)) << row.name << " row " << column;
          } else {
            const uint8_t code = codes[column * k + first + i / n];
            ASSERT_EQ(got, fp8_decode<Code::e4m3>(code)) << row.name << " code " << int{code};
          }
        }
      }
    }
  }
}

// Every code there is, the least included, over ragged k: what the row without a sign of its own is
// offset by comes off again to the last bit.
TEST(FastLinear, IntegerSumsAreExact) {
  const Rows all = all_rows();
  const QuantFormat format{Code::i8, grids::row};
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 40, 72},
                                {2, 133, 64},
                                {5, 8, 1},
                                {23, 37, 1001},
                                {64, 16, 4096}}) {
    LinearProblem problem(code_form(grids::row, Code::i8), code_form(grids::row, Code::i8), m, n,
                          k);
    std::mt19937 random(static_cast<uint32_t>(k));
    for (const Tensor& codes : {problem.x.quant.codes, problem.w.quant.codes}) {
      for (int64_t i = 0; i < codes.count(); ++i) {
        codes.as<uint8_t>()[i] = i < 512 ? 0x80 : static_cast<uint8_t>(random());
      }
    }
    for (const LinearRow& row : all.rows) {
      if (row.reduction_id != "int32" || row.refuses(problem.desc(), all.caps)) continue;
      const std::vector<float> out = run(row, all.caps, problem, DType::f32, 2);
      for (int64_t i = 0; i < m * n; ++i) {
        const int64_t r = i / n, c = i % n;
        int64_t sum = 0;
        for (int64_t j = 0; j < k; ++j) {
          sum += int64_t{problem.x.quant.codes.as<int8_t>()[r * k + j]} *
                 problem.w.quant.codes.as<int8_t>()[c * k + j];
        }
        const float scaled = static_cast<float>(sum) * problem.x.quant.scales.as<float>()[r];
        ASSERT_EQ(out[static_cast<size_t>(i)], scaled * problem.w.quant.scales.as<float>()[c])
            << row.name << " " << to_string(problem.desc()) << " " << i;
      }
    }
  }
}

TEST(FastLinear, StridedViewsOfWeightInputAndOutput) {
  const Rows all = all_rows();
  for (const LinearRow& row : all.rows) {
    LinearProblem problem(bf16_form, bf16_form, 3, 6, 200);
    if (row.refuses(problem.desc(), all.caps)) continue;
    const LinearProblem whole = LinearProblem(bf16_form, bf16_form, 3, 6, 200);
    problem.x.tensor = whole.x.tensor.columns(60, 140);
    problem.linear.plain = whole.w.tensor.columns(60, 140);
    std::vector<float> memory(3 * 20, -1.0f);
    const Tensor out = Tensor(memory.data(), DType::f32, {3, 20}).columns(7, 6);
    ThreadPool pool(2);
    launch(row, KernelContext{pool, all.caps}, problem.x.tensor, problem.linear, out);
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t n = 0; n < 20; ++n) {
        const float got = memory[static_cast<size_t>(m * 20 + n)];
        if (n < 7 || n >= 13) {
          EXPECT_EQ(got, -1.0f) << row.name;
          continue;
        }
        double sum = 0;
        for (int64_t i = 60; i < 200; ++i) sum += whole.x.at(m, i) * whole.w.at(n - 7, i);
        EXPECT_NEAR(got, sum, 1e-5) << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace octet::cpu
