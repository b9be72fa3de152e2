// MLA: absorbed attention over a paged cache of latents, and the products that go before and after.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "conformance/oracle.h"
#include "conformance/paged_cache.h"
#include "conformance/subject.h"

namespace octet::conformance {
namespace {

struct Case {
  int64_t heads, lora, rope, block_tokens;
  DType cache;
  ScaleType scale;
  bool fp8;
  DType activation;
  std::vector<Span> spans;
  bool scaled() const { return is_code(cache) && scale != ScaleType::unit; }
  int64_t groups() const { return (lora + 127) / 128; }
  QuantFormat format() const {
    return {is_code(cache) ? code_of(cache) : Code::e4m3,
            scaled() ? grids::group128 : grids::tensor, scale};
  }
  std::string name() const {
    std::string text =
        fmt::format("h={} lora={}+{} bt={} kv={}{} act={}{}", heads, lora, rope, block_tokens,
                    name_of(cache), is_code(cache) ? (scaled() ? " scaled" : " unit") : "",
                    name_of(activation), fp8 ? " fp8" : "");
    for (const Span& s : spans) text += fmt::format(" {}+{}", s.first_position, s.rows);
    return text;
  }
};

struct Cache {
  Plane latent, rope;
  Floats scales;
  std::vector<Doubles> latents, ropes;  // [sequence][position, lora] and [position, rope]
  std::vector<Floats> token_scales;     // [sequence][position, groups]
};

Cache fill_cache(const Case& c, const Pages& pages) {
  const int64_t slots = pages.blocks * pages.block_tokens;
  Cache cache{Plane(c.cache, slots, c.lora),
              Plane(c.activation == DType::f32 ? DType::f32 : DType::bf16, slots, c.rope),
              unused_scales(slots * c.groups()),
              {},
              {},
              {}};
  for (size_t s = 0; s < pages.sequences.size(); ++s) {
    Doubles latents, ropes;
    Floats scales;
    for (int64_t p = 0; p < pages.sequences[s].context(); ++p) {
      const int64_t slot = pages.slot_of(s, p);
      const auto seed = static_cast<uint64_t>(static_cast<int64_t>(s) * 8192 + p) * 2;
      const Floats values = random_values(seed, c.lora), pe = random_values(seed + 1, c.rope);
      for (int64_t g = 0; g < c.groups(); ++g) {
        // Tokens and groups of different size, as outliers make them.
        const float factor = std::ldexp(1.0f, static_cast<int>((p * 5 + g * 3) % 4) - 2);
        Floats part(values.begin() + g * 128, values.begin() + std::min(c.lora, (g + 1) * 128));
        for (float& v : part) v *= factor;
        const float scale =
            c.scaled() ? choose_scale(finite_absmax(part.data(), static_cast<int64_t>(part.size())),
                                      c.format())
                       : 1.0f;
        const Doubles stored = cache.latent.store(slot, g * 128, part, scale);
        latents.insert(latents.end(), stored.begin(), stored.end());
        cache.scales[static_cast<size_t>(slot * c.groups() + g)] = scale;
        scales.push_back(scale);
      }
      const Doubles stored = cache.rope.store(slot, 0, pe, 1.0f);
      ropes.insert(ropes.end(), stored.begin(), stored.end());
    }
    cache.latents.push_back(latents);
    cache.ropes.push_back(ropes);
    cache.token_scales.push_back(scales);
  }
  return cache;
}

struct Expected {
  Doubles value, rule;
  std::vector<Budget> budget;
  Doubles lse;
};

Expected expect(const Case& c, const Pages& pages, const Cache& cache, const Floats& q,
                const Floats& q_pe, float scale) {
  Expected expected;
  for (size_t s = 0; s < pages.sequences.size(); ++s) {
    const ops::SequenceRows& rows = pages.sequences[s];
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t position = rows.first_position + i;
      // S of every tile and group, over what this row sees: attention_rule.h, step 5.
      const auto ratio_of = [&](int64_t t, int64_t d) {
        const int64_t g = d / 128, begin = t / 64 * 64, end = std::min(begin + 64, position + 1);
        float most = 0.0f;
        for (int64_t u = begin; u < end; ++u) {
          most = std::max(most, cache.token_scales[s][static_cast<size_t>(u * c.groups() + g)]);
        }
        return double{cache.token_scales[s][static_cast<size_t>(t * c.groups() + g)]} /
               double{ceil_pow2(most)};
      };
      Doubles ratios(static_cast<size_t>((position + 1) * c.groups()));
      for (int64_t t = 0; t <= position && c.scaled(); ++t) {
        for (int64_t g = 0; g < c.groups(); ++g) {
          ratios[static_cast<size_t>(t * c.groups() + g)] = ratio_of(t, g * 128);
        }
      }
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t at = (rows.first_row + i) * c.heads + h;
        const Floats query(q.begin() + at * c.lora, q.begin() + (at + 1) * c.lora);
        Doubles qd = to_doubles(query);
        if (c.fp8)
          qd = quantized({Code::e4m3, grids::row, ScaleType::f32}, 1, c.lora, query).values;
        Doubles scores;
        double magnitude = 0.0;
        for (int64_t t = 0; t <= position; ++t) {
          double sum = 0.0, most = 0.0;
          const auto add = [&](double a, double b) {
            sum += a * b;
            most += std::abs(a * b);
          };
          for (int64_t d = 0; d < c.lora; ++d) {
            add(qd[static_cast<size_t>(d)], cache.latents[s][static_cast<size_t>(t * c.lora + d)]);
          }
          for (int64_t d = 0; d < c.rope; ++d) {
            add(double{q_pe[static_cast<size_t>(at * c.rope + d)]},
                cache.ropes[s][static_cast<size_t>(t * c.rope + d)]);
          }
          scores.push_back(sum * double{scale});
          magnitude = std::max(magnitude, most * double{scale});
        }
        const Doubles v(cache.latents[s].begin(),
                        cache.latents[s].begin() + (position + 1) * c.lora);
        const oracle::RowResult row = oracle::attention_row(
            scores, 0, v, c.lora, [](double p, int64_t, int64_t) { return p; });
        const oracle::RowResult rule =
            oracle::attention_row(scores, 0, v, c.lora, [&](double p, int64_t t, int64_t d) {
              if (!c.fp8) return p;
              const double ratio =
                  c.scaled() ? ratios[static_cast<size_t>(t * c.groups() + d / 128)] : 1.0;
              return oracle::e4m3(p * ratio * 256.0) / 256.0 / ratio;
            });
        AttentionBudget budget{magnitude, c.lora + c.rope, 0.0, c.activation};
        if (c.fp8) {
          budget.p_rounding = budgets::kE4m3Rounding;
        } else if (c.activation == DType::bf16 && c.cache != DType::f32) {
          budget.p_rounding = budgets::kBf16Rounding;
        }
        for (size_t d = 0; d < row.value.size(); ++d) {
          expected.value.push_back(row.value[d]);
          expected.rule.push_back(rule.value[d]);
          expected.budget.push_back(budget.of(row, d, position + 1));
        }
        expected.lse.push_back(row.lse);
      }
    }
  }
  return expected;
}

float scale_of(const Case& c) {
  return 1.0f / std::sqrt(static_cast<float>(c.lora / 4 + c.rope));
}

struct Queries {
  Floats latent, rope;
};
Queries queries(const Case& c, const Pages& pages) {
  return {rounded(c.activation, random_values(98, pages.rows * c.heads * c.lora, 0.7f)),
          rounded(c.activation, random_values(97, pages.rows * c.heads * c.rope))};
}

struct Result {
  Floats out, lse;
};

// Calls use(kernel, result) with what each kernel makes of the case.
void run_kernels(const Case& c, const Pages& pages, const Cache& cache, const Queries& q,
                 const std::function<void(const std::string&, const Result&)>& use) {
  ops::OpDesc desc{"mla_attention", pages.rows, c.heads, c.lora, c.cache, {}, {}, c.activation};
  if (is_code(c.cache)) desc.weight_format = c.format();
  if (c.fp8) desc.input_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
  for_each_kernel("mla_attention", desc, [&](ops::Backend& backend, const std::string& kernel) {
    if (c.cache == DType::i8 && !backend.info().int8) return;
    Rig rig(backend);
    ops::MlaCache device;
    device.latent =
        rig.put_bytes(c.cache, {pages.blocks, c.block_tokens, c.lora}, cache.latent.bytes);
    device.rope =
        rig.put_bytes(cache.rope.type, {pages.blocks, c.block_tokens, c.rope}, cache.rope.bytes);
    device.format = c.format();
    if (c.scaled()) {
      device.latent_scale =
          rig.put(DType::f32, {pages.blocks, c.block_tokens, c.groups()}, cache.scales);
    }
    const Tensor out = rig.make(c.activation, {pages.rows, c.heads, c.lora});
    const Tensor lse = rig.make(DType::f32, {pages.rows, c.heads});
    const ops::Batch batch = make_batch(rig, pages);
    backend.mla_attention(rig.put(c.activation, {pages.rows, c.heads, c.lora}, q.latent),
                          rig.put(c.activation, {pages.rows, c.heads, c.rope}, q.rope), device,
                          batch, {scale_of(c), c.fp8, 0}, out, lse);
    use(kernel, {rig.get(out), rig.get(lse)});
  });
}

void run_case(const Case& c) {
  const Pages pages = make_pages(c.spans, c.block_tokens);
  const Cache cache = fill_cache(c, pages);
  const Queries q = queries(c, pages);
  const Expected want = expect(c, pages, cache, q.latent, q.rope, scale_of(c));
  run_kernels(c, pages, cache, q, [&](const std::string& kernel, const Result& got) {
    report(c.fp8 ? "mla_attention fp8" : "mla_attention", kernel, c.name(),
           worst(got.out, want.value, [&](size_t i) { return want.budget[i]; }));
    report("mla_attention lse", kernel, c.name(), worst(got.lse, want.lse, [](size_t) {
             return Budget{2e-5, 16.0 * budgets::kF32Rounding};
           }));
    if (c.fp8 && c.activation == DType::f32 && subjects()[0].attention_rule) {
      const Floats rule(want.rule.begin(), want.rule.end());
      report("mla_attention rule", kernel, c.name(), relative_rms(got.out, rule) / 1e-3);
    }
  });
}

TEST(MlaAttention, CachesAndShapes) {
  const std::vector<Span> spans = {{63, 2}, {0, 7}, {100, 30}};
  struct Format {
    DType cache;
    ScaleType scale;
    bool fp8;
  };
  int index = 0;
  for (const Format& f : {Format{DType::e4m3, ScaleType::f32, true},
                          {DType::e4m3, ScaleType::f32, false},
                          {DType::e4m3, ScaleType::unit, true},
                          {DType::e4m3, ScaleType::e8m0, true},
                          {DType::e5m2, ScaleType::f32, true},
                          {DType::i8, ScaleType::f32, false},
                          {DType::bf16, ScaleType::f32, false},
                          {DType::f32, ScaleType::f32, false}}) {
    for (const DType activation : {DType::f32, DType::bf16}) {
      for (const auto& [lora, rope] : {std::array<int64_t, 2>{512, 64}, {64, 16}, {130, 10}}) {
        const int64_t heads = std::array{2, 5, 16}[static_cast<size_t>(index % 3)];
        const int64_t block_tokens = std::array{16, 64}[static_cast<size_t>(index % 2)];
        run_case({heads, lora, rope, block_tokens, f.cache, f.scale, f.fp8, activation, spans});
        ++index;
      }
    }
  }
}

TEST(MlaAttention, LongContexts) {
  for (const bool fp8 : {true, false}) {
    run_case(
        {4, 256, 32, 64, DType::e4m3, ScaleType::f32, fp8, DType::f32, {{1015, 20}, {2060, 1}}});
    run_case(
        {4, 256, 32, 64, DType::i8, ScaleType::f32, false, DType::f32, {{1015, 20}, {2060, 1}}});
    run_case(
        {4, 256, 32, 16, DType::bf16, ScaleType::f32, false, DType::bf16, {{1030, 2}, {2060, 1}}});
  }
}

// A NaN in either part of a query is a NaN in all of its row; one in a latent or its rope part is
// one in the rows that see it. No other row changes.
TEST(MlaAttention, NanReachesTheRowsThatSeeIt) {
  const std::vector<Span> spans = {{0, 70}, {1020, 10}};
  std::vector<Case> cases;
  for (const DType activation : {DType::f32, DType::bf16}) {
    for (const bool fp8 : {true, false}) {
      cases.push_back({3, 192, 16, 16, DType::e4m3, ScaleType::f32, fp8, activation, spans});
      cases.push_back({3, 192, 16, 64, DType::e5m2, ScaleType::f32, fp8, activation, spans});
      cases.push_back({3, 192, 16, 16, DType::e4m3, ScaleType::unit, fp8, activation, spans});
    }
    cases.push_back({3, 192, 16, 16, DType::bf16, ScaleType::f32, false, activation, spans});
    cases.push_back({3, 130, 10, 16, DType::f32, ScaleType::f32, false, activation, spans});
  }
  for (const Case& c : cases) {
    const Pages pages = make_pages(c.spans, c.block_tokens);
    const Cache cache = fill_cache(c, pages);
    const Queries q = queries(c, pages);
    std::map<std::string, Result> clean;
    run_kernels(c, pages, cache, q,
                [&](const std::string& kernel, const Result& r) { clean[kernel] = r; });
    const auto check = [&](const std::string& what, const Cache& bad, const Queries& bad_q,
                           const std::function<bool(size_t)>& nan) {
      run_kernels(c, pages, bad, bad_q, [&](const std::string& kernel, const Result& got) {
        const Result& before = clean.at(kernel);
        EXPECT_EQ("", broken_rows_differ(got.out, got.lse, before.out, before.lse, nan))
            << kernel << " " << c.name() << " " << what;
      });
    };
    for (const bool rope : {false, true}) {
      Queries bad = q;
      std::set<size_t> rows;
      // The first row, one within, the first beyond a split, the last.
      for (const int64_t row : {int64_t{0}, int64_t{69}, int64_t{74}, pages.rows - 1}) {
        const int64_t at = row * c.heads + row % c.heads;
        rows.insert(static_cast<size_t>(at));
        (rope ? bad.rope[static_cast<size_t>(at * c.rope + 7)]
              : bad.latent[static_cast<size_t>(at * c.lora + 129)]) =
            std::numeric_limits<float>::quiet_NaN();
      }
      check(rope ? "q_pe" : "q", cache, bad, [&](size_t row) { return rows.contains(row); });
      for (const auto& [sequence, position] :
           std::vector<std::pair<size_t, int64_t>>{{0, 0}, {0, 37}, {0, 64}, {1, 5}, {1, 1024}}) {
        Cache broken = cache;
        (rope ? broken.rope : broken.latent).set_nan(pages.slot_of(sequence, position), 5);
        const ops::SequenceRows& s = pages.sequences[sequence];
        check(fmt::format("{} of position {}", rope ? "rope" : "latent", position), broken, q,
              [&, at = position](size_t row) {
                const int64_t token = static_cast<int64_t>(row) / c.heads;
                return token >= s.first_row && token < s.first_row + s.rows &&
                       s.first_position + token - s.first_row >= at;
              });
      }
    }
  }
}

TEST(MlaLinear, AbsorbAndExpand) {
  struct Weight {
    DType type;
    std::optional<QuantFormat> format;
  };
  for (const Weight& weight :
       {Weight{DType::f32, {}},
        {DType::bf16, {}},
        {DType::e4m3, QuantFormat{Code::e4m3, grids::block128, ScaleType::f32}},
        {DType::e4m3, QuantFormat{Code::e4m3, grids::row, ScaleType::f32}},
        {DType::e4m3, QuantFormat{Code::e4m3, grids::tensor, ScaleType::f32}},
        {DType::e4m3, QuantFormat{Code::e4m3, {1, 32}, ScaleType::e8m0}}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [tokens, heads, nope, rope, v, lora] : std::vector<std::array<int64_t, 6>>{
               {3, 2, 128, 64, 128, 512}, {7, 3, 24, 8, 40, 130}, {1, 4, 160, 16, 64, 64}}) {
        const int64_t rows = heads * (nope + v), width = nope + rope;
        const Floats w = random_values(31, rows * lora);
        Doubles wd;
        std::optional<HostQuant> wq;
        if (weight.format) {
          wq = quantized(*weight.format, rows, lora, w);
          wd = wq->values;
        } else {
          wd = to_doubles(rounded(weight.type, w));
        }
        const Floats q = rounded(type, random_values(32, tokens * heads * width));
        const Floats o = rounded(type, random_values(33, tokens * heads * lora));
        oracle::Sums absorbed, expanded;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t first = h * (nope + v);
            for (int64_t c = 0; c < lora; ++c) {
              double sum = 0.0, magnitude = 0.0;
              for (int64_t n = 0; n < nope; ++n) {
                const double product = double{q[static_cast<size_t>((t * heads + h) * width + n)]} *
                                       wd[static_cast<size_t>((first + n) * lora + c)];
                sum += product;
                magnitude += std::abs(product);
              }
              absorbed.value.push_back(sum);
              absorbed.magnitude.push_back(magnitude);
            }
            for (int64_t j = 0; j < v; ++j) {
              double sum = 0.0, magnitude = 0.0;
              for (int64_t c = 0; c < lora; ++c) {
                const double product = double{o[static_cast<size_t>((t * heads + h) * lora + c)]} *
                                       wd[static_cast<size_t>((first + nope + j) * lora + c)];
                sum += product;
                magnitude += std::abs(product);
              }
              expanded.value.push_back(sum);
              expanded.magnitude.push_back(magnitude);
            }
          }
        }
        const std::string what = fmt::format(
            "t={} h={} nope={} v={} lora={} w={} x={}", tokens, heads, nope, v, lora,
            weight.format ? octet::to_string(*weight.format) : std::string(name_of(weight.type)),
            name_of(type));
        const auto put_weight = [&](Rig& rig) {
          ops::Linear kv_b;
          kv_b.out = rows;
          kv_b.in = lora;
          if (wq) {
            kv_b.quant = rig.put(*wq);
          } else {
            kv_b.plain = rig.put(weight.type, {rows, lora}, w);
          }
          return kv_b;
        };
        ops::OpDesc desc{"mla_absorb", tokens, rows, lora, weight.type, weight.format, {}, type};
        for_each_kernel(desc.op, desc, [&](ops::Backend& backend, const std::string& kernel) {
          Rig rig(backend);
          const Tensor out = rig.make(type, {tokens, heads, lora});
          backend.mla_absorb(rig.put(type, {tokens, heads, width}, q), put_weight(rig), nope, out);
          report("mla_absorb", kernel, what, worst(rig.get(out), absorbed.value, [&](size_t i) {
                   return with_output(budgets::reordered_sum(nope, absorbed.magnitude[i]), type);
                 }));
        });
        desc.op = "mla_expand";
        for_each_kernel(desc.op, desc, [&](ops::Backend& backend, const std::string& kernel) {
          Rig rig(backend);
          const Tensor out = rig.make(type, {tokens, heads, v});
          backend.mla_expand(rig.put(type, {tokens, heads, lora}, o), put_weight(rig), nope, out);
          report("mla_expand", kernel, what, worst(rig.get(out), expanded.value, [&](size_t i) {
                   return with_output(budgets::reordered_sum(lora, expanded.magnitude[i]), type);
                 }));
        });
      }
    }
  }
}

}  // namespace
}  // namespace octet::conformance
