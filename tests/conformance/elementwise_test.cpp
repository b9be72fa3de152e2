// The ops that work row by row: embed, add, gather_rows, rms_norm, quantize, silu_mul, rope.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/oracle.h"
#include "conformance/rig.h"

namespace octet::conformance {
namespace {

// Bits must be equal: no share of any budget, or an infinite one.
constexpr int64_t kShapes[][2] = {{1, 72}, {7, 130}, {3, 576}, {2, 1}, {65, 256}};

const std::vector<QuantFormat> kFormats = {
    {Code::e4m3, grids::row, ScaleType::f32},     {Code::e4m3, grids::group128, ScaleType::f32},
    {Code::e4m3, grids::tensor, ScaleType::f32},  {Code::e4m3, grids::block128, ScaleType::f32},
    {Code::e4m3, {1, 32}, ScaleType::e8m0},       {Code::e5m2, grids::row, ScaleType::e8m0},
    {Code::e5m2, grids::tensor, ScaleType::unit}, {Code::e4m3, grids::group128, ScaleType::e8m0}};

TEST(Quantize, EqualsTheReferenceBitForBit) {
  for (const QuantFormat& format : kFormats) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [rows, cols] : kShapes) {
        Floats x = random_values(10, rows * cols, 20.0f);
        // The corners: zeros, a zero row, NaN, Inf, tiny and huge values.
        x[0] = std::numeric_limits<float>::quiet_NaN();
        if (x.size() > 40) {
          x[1] = -std::numeric_limits<float>::infinity();
          x[2] = -0.0f;
          x[3] = 1e-30f;
          x[4] = 3e30f;
          std::fill(x.end() - cols, x.end(), 0.0f);
        }
        x = rounded(type, x);
        for (const bool fixed : {false, true}) {
          HostQuant want{format, rows, cols, std::vector<uint8_t>(x.size()), {}, {}};
          want.scales.resize(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()),
                             0.7f);
          if (fixed) {
            quantize_with_scales(x, rows, cols, format, want.scales, want.codes);
          } else {
            quantize(x, rows, cols, format, want.codes, want.scales);
          }
          for_each_backend([&](ops::Backend& backend, const std::string& name) {
            Rig rig(backend);
            const QuantTensor out = rig.make(format, rows, cols);
            backend.quantize(rig.put(type, {rows, cols}, x), out,
                             fixed ? rig.put(DType::f32, {1}, {0.7f}) : Tensor{});
            report(
                "quantize", name,
                fmt::format("{}x{} {} {}{}", rows, cols, name_of(type), octet::to_string(format),
                            fixed ? " fixed" : ""),
                same(rig.get_bytes(out.codes) == want.codes && rig.get(out.scales) == want.scales));
          });
        }
      }
    }
  }
}

// Scales may be stored column by column, and codes and inputs may be parts of wider matrices.
TEST(Quantize, HonoursStrides) {
  const int64_t rows = 5, cols = 300;
  const QuantFormat format{Code::e4m3, grids::group128, ScaleType::f32};
  const Floats wide = random_values(11, rows * 400);
  Floats x;
  for (int64_t r = 0; r < rows; ++r) {
    x.insert(x.end(), wide.begin() + r * 400 + 50, wide.begin() + r * 400 + 50 + cols);
  }
  const HostQuant want = quantized(format, rows, cols, x);
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    Rig rig(backend);
    QuantTensor out = rig.make(format, rows, cols);
    const Tensor scales = rig.make(DType::f32, {3, rows});  // column-major [rows, 3]
    out.scales = scales;
    out.scales.shape = {rows, 3};
    out.scales.strides = {1, rows};
    backend.quantize(rig.put(DType::f32, {rows, 400}, wide).columns(50, cols), out);
    Floats transposed;
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t r = 0; r < rows; ++r)
        transposed.push_back(want.scales[static_cast<size_t>(r * 3 + c)]);
    }
    report("quantize", name, "strided",
           same(rig.get_bytes(out.codes) == want.codes && rig.get(scales) == transposed));
  });
}

TEST(Embed, CopiesAndConvertsRows) {
  for (const DType table : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const int64_t vocab = 11, hidden = 72;
      const Floats values = rounded(table, random_values(12, vocab * hidden));
      const std::vector<int32_t> tokens = {0, 10, 3, 3, 7};
      Floats want;
      for (const int32_t t : tokens) {
        want.insert(want.end(), values.begin() + t * hidden, values.begin() + (t + 1) * hidden);
      }
      want = rounded(type, want);
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        Rig rig(backend);
        const Tensor out = rig.make(type, {5, hidden});
        backend.embed(rig.put(table, {vocab, hidden}, values), rig.put({5}, tokens), out);
        report("embed", name, fmt::format("{} to {}", name_of(table), name_of(type)),
               same(rig.get(out) == want));
        if (table == type) {
          const Tensor rows = rig.make(type, {5, hidden});
          backend.gather_rows(rig.put(table, {vocab, hidden}, values), rig.put({5}, tokens), rows);
          report("gather_rows", name, std::string(name_of(type)), same(rig.get(rows) == want));
        }
      });
    }
  }
}

TEST(Add, RoundsOnceAndMayBeInPlace) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Floats x = rounded(type, random_values(13, 7 * 130)),
                 y = rounded(type, random_values(14, 7 * 130));
    Floats want(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = x[i] + y[i];
    want = rounded(type, want);
    for_each_backend([&](ops::Backend& backend, const std::string& name) {
      Rig rig(backend);
      const Tensor a = rig.put(type, {7, 130}, x);
      backend.add(a, rig.put(type, {7, 130}, y), a);
      report("add", name, std::string(name_of(type)), same(rig.get(a) == want));
    });
  }
}

// FP32 with a handful of roundings, then one rounding to the output.
Budget few_roundings(DType type, double magnitude = 0.0) {
  return with_output({budgets::kF32Rounding * 8.0 * magnitude, budgets::kF32Rounding * 16.0}, type);
}

// Dequantized codes of an output whose exact values are `want`.
double code_share(Rig& rig, const QuantTensor& out, const Doubles& want) {
  const int64_t rows = out.codes.rows(), cols = out.codes.cols();
  const std::vector<uint8_t> codes = rig.get_bytes(out.codes);
  const Floats scales = rig.get(out.scales);
  Floats got(codes.size());
  dequantize(codes, rows, cols, out.format, scales, got);
  const ScaleGrid grid = out.format.grid;
  const int64_t cell_rows = grid.rows ? grid.rows : rows, cell_cols = grid.cols ? grid.cols : cols;
  const int64_t scale_cols = scale_shape(grid, rows, cols).cols;
  return worst(got, want, [&](size_t i) {
    const int64_t r = static_cast<int64_t>(i) / cols, c = static_cast<int64_t>(i) % cols;
    return budgets::code(out.format.code,
                         scales[static_cast<size_t>(r / cell_rows * scale_cols + c / cell_cols)]);
  });
}

TEST(RmsNorm, EveryForm) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] : kShapes) {
      const Floats x = rounded(type, random_values(15, rows * cols, 3.0f));
      const Floats weight = rounded(type, random_values(16, cols));
      Doubles want(x.size());
      for (int64_t r = 0; r < rows; ++r) {
        double squares = 0.0;
        for (int64_t c = 0; c < cols; ++c)
          squares += std::pow(double{x[static_cast<size_t>(r * cols + c)]}, 2);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
        for (int64_t c = 0; c < cols; ++c) {
          const auto i = static_cast<size_t>(r * cols + c);
          want[i] = double{x[i]} * factor * double{weight[static_cast<size_t>(c)]};
        }
      }
      for (const QuantFormat& format : kFormats) {
        if (format.scale == ScaleType::unit) continue;
        for_each_backend([&](ops::Backend& backend, const std::string& name) {
          Rig rig(backend);
          const Tensor in = rig.put(type, {rows, cols}, x);
          const ops::NormWeight norm{rig.put(type, {cols}, weight), 1e-5f};
          const Tensor plain = rig.make(type, {rows, cols});
          const QuantTensor quant = rig.make(format, rows, cols),
                            alone = rig.make(format, rows, cols);
          backend.rms_norm(in, norm, ops::Activation(plain, quant));
          backend.rms_norm(in, norm, alone);
          const std::string what =
              fmt::format("{}x{} {} {}", rows, cols, name_of(type), octet::to_string(format));
          report("rms_norm", name, what,
                 worst(rig.get(plain), want, [&](size_t) { return few_roundings(type); }));
          report("rms_norm", name, what + " codes", code_share(rig, quant, want));
          report("rms_norm", name, what + " one form alone",
                 same(rig.get_bytes(quant.codes) == rig.get_bytes(alone.codes) &&
                      rig.get(quant.scales) == rig.get(alone.scales)));
        });
      }
    }
  }
}

// Heads of q and k, as Qwen3 norms them: many rows, each as narrow as a head.
TEST(RmsNorm, OfHeads) {
  const int64_t tokens = 37;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{4, 14}, {32, 64}, {8, 128}}) {
      const int64_t rows = tokens * heads;
      const Floats x = rounded(type, random_values(31, rows * dim, 3.0f));
      const Floats weight = random_values(32, dim);
      Doubles want(x.size());
      for (size_t first = 0; first < x.size(); first += static_cast<size_t>(dim)) {
        double squares = 0.0;
        for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
          squares += std::pow(double{x[first + i]}, 2);
        }
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
        for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
          want[first + i] = double{x[first + i]} * factor * double{weight[i]};
        }
      }
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        Rig rig(backend);
        const Tensor in = rig.put(type, {tokens, heads, dim}, x);
        const Tensor out = rig.make(type, {tokens, heads, dim});
        backend.rms_norm(in.reshape({rows, dim}), {rig.put(DType::f32, {dim}, weight), 1e-6f},
                         out.reshape({rows, dim}));
        report("rms_norm", name, fmt::format("{} heads of {} {}", heads, dim, name_of(type)),
               worst(rig.get(out), want, [&](size_t) { return few_roundings(type); }));
      });
    }
  }
}

TEST(AddRmsNorm, EqualsItsParts) {
  const int64_t rows = 7, cols = 130;
  for (const DType type : {DType::f32, DType::bf16}) {
    const Floats x = rounded(type, random_values(17, rows * cols)),
                 d = rounded(type, random_values(18, rows * cols));
    for_each_backend([&](ops::Backend& backend, const std::string& name) {
      Rig rig(backend);
      const ops::NormWeight norm{rig.put(type, {cols}, rounded(type, random_values(19, cols))),
                                 1e-6f};
      const Tensor a = rig.put(type, {rows, cols}, x), b = rig.put(type, {rows, cols}, x);
      const Tensor delta = rig.put(type, {rows, cols}, d);
      const Tensor fused = rig.make(type, {rows, cols}), parts = rig.make(type, {rows, cols});
      backend.add_rms_norm(a, delta, norm, fused);
      backend.add(b, delta, b);
      backend.rms_norm(b, norm, parts);
      const Floats want = rig.get(parts);
      report("add_rms_norm", name, std::string(name_of(type)),
             worst(rig.get(fused), to_doubles(want), [&](size_t) { return few_roundings(type); }));
      report("add_rms_norm", name, "residual", same(rig.get(a) == rig.get(b)));
    });
  }
}

TEST(SiluMul, EveryForm) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] : kShapes) {
      Floats gate = rounded(type, random_values(20, rows * cols, 6.0f));
      gate[0] = -120.0f;  // e^120 overflows in FP32
      const Floats up = rounded(type, random_values(21, rows * cols));
      Doubles want(gate.size());
      for (size_t i = 0; i < want.size(); ++i)
        want[i] = oracle::silu(double{gate[i]}) * double{up[i]};
      const QuantFormat format{Code::e4m3, grids::group128, ScaleType::f32};
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        Rig rig(backend);
        const Tensor plain = rig.make(type, {rows, cols});
        const QuantTensor quant = rig.make(format, rows, cols);
        backend.silu_mul(rig.put(type, {rows, cols}, gate), rig.put(type, {rows, cols}, up),
                         ops::Activation(plain, quant));
        const std::string what = fmt::format("{}x{} {}", rows, cols, name_of(type));
        report("silu_mul", name, what, worst(rig.get(plain), want, [&](size_t) {
                 Budget budget = few_roundings(type);
                 budget.abs = 0x1p-140;  // subnormal results
                 return budget;
               }));
        report("silu_mul", name, what + " codes", code_share(rig, quant, want));
      });
    }
  }
}

TEST(Rope, BothPairings) {
  const int64_t positions = 40;
  for (const int64_t dim : {64, 72, 128, 2}) {
    for (const bool interleaved : {false, true}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const int64_t tokens = 5, heads = 3, half = dim / 2;
        Floats cos_table, sin_table;
        for (int64_t p = 0; p < positions; ++p) {
          for (int64_t j = 0; j < half; ++j) {
            const double angle =
                static_cast<double>(p) *
                std::pow(1e4, -2.0 * static_cast<double>(j) / static_cast<double>(dim));
            cos_table.push_back(static_cast<float>(std::cos(angle)));
            sin_table.push_back(static_cast<float>(std::sin(angle)));
          }
        }
        const std::vector<int32_t> at = {0, 39, 7, 8, 9};
        // The rotated part is the tail of a wider head, as in MLA's queries.
        const int64_t wide = dim + 24;
        const Floats x = rounded(type, random_values(22, tokens * heads * wide));
        Doubles want = to_doubles(x), magnitude(x.size());
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t j = 0; j < half; ++j) {
              const int64_t base = (t * heads + h) * wide + 24;
              const auto a = static_cast<size_t>(base + (interleaved ? 2 * j : j));
              const auto b = static_cast<size_t>(base + (interleaved ? 2 * j + 1 : j + half));
              const auto angle = static_cast<size_t>(at[static_cast<size_t>(t)] * half + j);
              const double c = cos_table[angle], s = sin_table[angle];
              want[a] = double{x[a]} * c - double{x[b]} * s;
              want[b] = double{x[b]} * c + double{x[a]} * s;
              magnitude[a] = magnitude[b] = std::abs(double{x[a]}) + std::abs(double{x[b]});
            }
          }
        }
        for_each_backend([&](ops::Backend& backend, const std::string& name) {
          Rig rig(backend);
          const Tensor all = rig.put(type, {tokens, heads, wide}, x);
          const ops::RopeTable table{rig.put(DType::f32, {positions, half}, cos_table),
                                     rig.put(DType::f32, {positions, half}, sin_table),
                                     interleaved};
          backend.rope(all.columns(24, dim), table, rig.put({tokens}, at));
          report("rope", name,
                 fmt::format("dim={} {} {}", dim, interleaved ? "interleaved" : "halves",
                             name_of(type)),
                 worst(rig.get(all), want,
                       [&](size_t i) { return few_roundings(type, magnitude[i]); }));
        });
      }
    }
  }
}

// A factor for each dimension of a head, which neighbouring heads may share.
TEST(ScaleHeads, TimesItsOwnFactor) {
  const int64_t tokens = 5, heads = 6;
  for (const int64_t dim : {64, 72, 2}) {
    for (const int64_t n : {1, 2, 6}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const int64_t wide = dim + 24;  // a view of wider heads, as of what one linear gave
        const Floats x = rounded(type, random_values(23, tokens * heads * wide));
        Floats factors = random_values(24, n * dim);
        factors[0] = 0x1p-8f;
        Doubles want = to_doubles(x), magnitude(x.size());
        for (int64_t row = 0; row < tokens * heads; ++row) {
          for (int64_t i = 0; i < dim; ++i) {
            const auto at = static_cast<size_t>(row * wide + 24 + i);
            const int64_t head = row % heads / (heads / n);
            want[at] *= double{factors[static_cast<size_t>(head * dim + i)]};
            magnitude[at] = std::abs(want[at]);
          }
        }
        for_each_backend([&](ops::Backend& backend, const std::string& name) {
          if (!backend.info().kv_channels) return;
          Rig rig(backend);
          const Tensor all = rig.put(type, {tokens, heads, wide}, x);
          backend.scale_heads(all.columns(24, dim), rig.put(DType::f32, {n, dim}, factors));
          report("scale_heads", name, fmt::format("dim={} n={} {}", dim, n, name_of(type)),
                 worst(rig.get(all), want,
                       [&](size_t i) { return few_roundings(type, magnitude[i]); }));
        });
      }
    }
  }
}

TEST(Faults, NameTheOpAndItsShapes) {
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    Rig rig(backend);
    const Tensor table = rig.put(DType::f32, {4, 8}, random_values(1, 32));
    const Tensor out = rig.make(DType::f32, {2, 8});
    const auto text_of = [&](auto call) {
      try {
        call();
        backend.sync();
      } catch (const Fault& fault) {
        return std::string(fault.what());
      }
      return std::string("no fault");
    };
    EXPECT_THAT(text_of([&] {
                  backend.embed(table, rig.put({2}, {1, 4}), out);
                }),
                testing::AllOf(testing::HasSubstr("embed"), testing::HasSubstr("4")));
    EXPECT_THAT(text_of([&] {
                  backend.embed(table, rig.put({2}, {-1, 0}), out);
                }),
                testing::HasSubstr("embed"));
    EXPECT_THAT(text_of([&] { backend.add(table, out, out); }),
                testing::AllOf(testing::HasSubstr("add"), testing::HasSubstr("[4, 8]")));
    ops::Linear w;
    w.name = "model.layers.0.mlp.up_proj";
    w.out = 4;
    w.in = 9;
    w.plain = table;
    EXPECT_THAT(text_of([&] {
                  backend.linear(table, w, rig.make(DType::f32, {4, 4}));
                }),
                testing::AllOf(testing::HasSubstr("up_proj"), testing::HasSubstr("[4, 8]")));
  });
}

}  // namespace
}  // namespace octet::conformance
