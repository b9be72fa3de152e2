// GQA attention over a paged cache whose unused bytes are NaN.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "conformance/oracle.h"
#include "conformance/paged_cache.h"
#include "conformance/subject.h"

namespace octet::conformance {
namespace {

struct Case {
  int64_t heads, kv_heads, dim, block_tokens;
  DType cache;
  bool fp8;
  DType activation;
  int64_t window;
  std::vector<Span> spans;
  // Scales by groups of 1024 tokens, or one a token and head; else one a head.
  bool groups = false, token_heads = false;
  std::string name() const {
    std::string text =
        fmt::format("h={}/{} d={} bt={} kv={} act={}{}{}", heads, kv_heads, dim, block_tokens,
                    name_of(cache), name_of(activation), fp8 ? " fp8" : "",
                    token_heads ? " token heads"
                    : groups    ? " groups"
                                : "");
    if (window) text += fmt::format(" window={}", window);
    for (const Span& s : spans) text += fmt::format(" {}+{}", s.first_position, s.rows);
    return text;
  }
};

// Powers of two by group, as kv_layout.h chooses them; else any number.
float scale_of(const Case& c, int64_t position, int64_t head, bool value) {
  if (!is_code(c.cache)) return 1.0f;
  if (c.token_heads) {
    const float of_token = 1.0f + 0.37f * static_cast<float>((position * 7 + head * 3) % 11);
    return (value ? 0.017f : 0.011f) * of_token * (c.cache == DType::i8 ? 1.5f : 1.0f);
  }
  if (c.groups) return std::ldexp(1.0f, static_cast<int>((position / 1024 * 5 + head) % 4) - 6);
  return (value ? 0.017f : 0.011f) * static_cast<float>(head + 1);
}

struct Cache {
  Plane k, v;
  Floats k_scale, v_scale;
  std::vector<Doubles> keys, values;  // [sequence][position, kv_heads, dim]
};

Cache fill_cache(const Case& c, const Pages& pages) {
  const int64_t width = c.kv_heads * c.dim, slots = pages.blocks * pages.block_tokens;
  const int64_t cells = (c.token_heads ? slots : pages.blocks) * c.kv_heads;
  Cache cache{Plane(c.cache, slots, width),
              Plane(c.cache, slots, width),
              unused_scales(cells),
              unused_scales(cells),
              {},
              {}};
  for (size_t s = 0; s < pages.sequences.size(); ++s) {
    Doubles keys, values;
    for (int64_t p = 0; p < pages.sequences[s].context(); ++p) {
      const int64_t slot = pages.slot_of(s, p);
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        const auto seed = static_cast<uint64_t>((static_cast<int64_t>(s) * 4096 + p) * 64 + h);
        const auto cell =
            static_cast<size_t>((c.token_heads ? slot : slot / c.block_tokens) * c.kv_heads + h);
        cache.k_scale[cell] = scale_of(c, p, h, false);
        cache.v_scale[cell] = scale_of(c, p, h, true);
        const Doubles k =
            cache.k.store(slot, h * c.dim, random_values(2 * seed, c.dim), cache.k_scale[cell]);
        const Doubles v =
            cache.v.store(slot, h * c.dim, random_values(2 * seed + 1, c.dim), cache.v_scale[cell]);
        keys.insert(keys.end(), k.begin(), k.end());
        values.insert(values.end(), v.begin(), v.end());
      }
    }
    cache.keys.push_back(keys);
    cache.values.push_back(values);
  }
  return cache;
}

// v_scale / S of attention_rule.h for the positions of a row: S is the largest scale that it sees
// in a tile.
Doubles ratios_of(const Case& c, int64_t begin, int64_t position, int64_t head) {
  Doubles ratios(static_cast<size_t>(position + 1));
  for (int64_t t = begin; t <= position; ++t) {
    float largest = 0.0f;
    const int64_t tile = t / 64 * 64;
    for (int64_t i = std::max(begin, tile); i <= std::min(position, tile + 63); ++i) {
      largest = std::max(largest, scale_of(c, i, head, true));
    }
    ratios[static_cast<size_t>(t)] = scale_of(c, t, head, true) / largest;
  }
  return ratios;
}

// What every (row, head) should be: against exact P, and against P rounded as the rule says.
struct Expected {
  Doubles value, rule;
  std::vector<Budget> budget;
  Doubles lse;
};

Expected expect(const Case& c, const Pages& pages, const Cache& cache, const Floats& q,
                float scale) {
  Expected expected;
  const int64_t width = c.kv_heads * c.dim;
  for (size_t s = 0; s < pages.sequences.size(); ++s) {
    const ops::SequenceRows& rows = pages.sequences[s];
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t position = rows.first_position + i;
      const int64_t begin = c.window ? std::max<int64_t>(0, position + 1 - c.window) : 0;
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t kv = h / (c.heads / c.kv_heads);
        const auto q_begin = q.begin() + ((rows.first_row + i) * c.heads + h) * c.dim;
        Floats query(q_begin, q_begin + c.dim);
        Doubles qd = to_doubles(query);
        if (c.fp8) qd = quantized({Code::e4m3, grids::row, ScaleType::f32}, 1, c.dim, query).values;
        Doubles scores(static_cast<size_t>(position + 1)), v;
        double magnitude = 0.0;
        for (int64_t t = 0; t <= position; ++t) {
          const auto at = static_cast<size_t>(t * width + kv * c.dim);
          double sum = 0.0, most = 0.0;
          for (size_t d = 0; d < static_cast<size_t>(c.dim); ++d) {
            sum += qd[d] * cache.keys[s][at + d];
            most += std::abs(qd[d] * cache.keys[s][at + d]);
            v.push_back(cache.values[s][at + d]);
          }
          scores[static_cast<size_t>(t)] = sum * double{scale};
          if (t >= begin) magnitude = std::max(magnitude, most * double{scale});
        }
        const oracle::RowResult row = oracle::attention_row(
            scores, begin, v, c.dim, [](double p, int64_t, int64_t) { return p; });
        const Doubles ratios = c.token_heads ? ratios_of(c, begin, position, kv) : Doubles();
        const oracle::RowResult rule =
            oracle::attention_row(scores, begin, v, c.dim, [&](double p, int64_t t, int64_t) {
              if (!c.fp8) return p;
              const double ratio = c.token_heads ? ratios[static_cast<size_t>(t)] : 1.0;
              return oracle::e4m3(p * ratio * 256.0) / 256.0 / ratio;
            });
        AttentionBudget budget{magnitude, c.dim, 0.0, c.activation};
        if (c.fp8) {
          budget.p_rounding = budgets::kE4m3Rounding;
        } else if (c.activation == DType::bf16 && c.cache != DType::f32) {
          budget.p_rounding = budgets::kBf16Rounding;
        }
        for (size_t d = 0; d < row.value.size(); ++d) {
          expected.value.push_back(row.value[d]);
          expected.rule.push_back(rule.value[d]);
          expected.budget.push_back(budget.of(row, d, position + 1 - begin));
        }
        expected.lse.push_back(row.lse);
      }
    }
  }
  return expected;
}

float scale_of(const Case& c) {
  return 1.0f / std::sqrt(static_cast<float>(c.dim));
}

struct Result {
  Floats out, lse;
};

// Calls use(kernel, result) with what each kernel makes of the case.
void run_kernels(const Case& c, const Pages& pages, const Cache& cache, const Floats& q,
                 const std::function<void(const std::string&, const Result&)>& use) {
  ops::OpDesc desc{"attention", pages.rows, c.heads, c.dim, c.cache, {}, {}, c.activation};
  if (is_code(c.cache)) {
    desc.weight_format = QuantFormat{
        code_of(c.cache), {c.token_heads ? 1 : 0, static_cast<int32_t>(c.dim)}, ScaleType::f32};
  }
  if (c.fp8) desc.input_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
  for_each_kernel("attention", desc, [&](ops::Backend& backend, const std::string& kernel) {
    if (c.token_heads && !backend.info().kv_token_heads) return;
    Rig rig(backend);
    const Shape planes{pages.blocks, c.block_tokens, c.kv_heads, c.dim};
    ops::GqaCache device;
    device.k = rig.put_bytes(c.cache, planes, cache.k.bytes);
    device.v = rig.put_bytes(c.cache, planes, cache.v.bytes);
    if (is_code(c.cache)) {
      const Shape cells = c.token_heads ? Shape{pages.blocks, c.block_tokens, c.kv_heads}
                                        : Shape{pages.blocks, c.kv_heads};
      device.k_scale = rig.put(DType::f32, cells, cache.k_scale);
      device.v_scale = rig.put(DType::f32, cells, cache.v_scale);
    }
    const Tensor out = rig.make(c.activation, {pages.rows, c.heads, c.dim});
    const Tensor lse = rig.make(DType::f32, {pages.rows, c.heads});
    const ops::AttentionSpec spec{scale_of(c), c.fp8, c.window};
    const ops::Batch batch = make_batch(rig, pages);
    backend.attention(rig.put(c.activation, {pages.rows, c.heads, c.dim}, q), device, batch, spec,
                      out, lse);
    use(kernel, {rig.get(out), rig.get(lse)});
  });
}

Floats queries(const Case& c, const Pages& pages) {
  return rounded(c.activation, random_values(99, pages.rows * c.heads * c.dim, 1.5f));
}

void run_case(const Case& c) {
  const Pages pages = make_pages(c.spans, c.block_tokens);
  const Cache cache = fill_cache(c, pages);
  const Floats q = queries(c, pages);
  const Expected want = expect(c, pages, cache, q, scale_of(c));
  run_kernels(c, pages, cache, q, [&](const std::string& kernel, const Result& got) {
    report(c.fp8 ? "attention fp8" : "attention", kernel, c.name(),
           worst(got.out, want.value, [&](size_t i) { return want.budget[i]; }));
    report("attention lse", kernel, c.name(), worst(got.lse, want.lse, [](size_t) {
             return Budget{2e-5, 16.0 * budgets::kF32Rounding};
           }));
    if (c.fp8 && c.activation == DType::f32 && subjects()[0].attention_rule) {
      // A score that is off by an FP32 rounding moves a P across a tie now and then: a few such
      // steps are all that may remain.
      const Floats rule(want.rule.begin(), want.rule.end());
      report("attention rule", kernel, c.name(), relative_rms(got.out, rule) / 1e-3);
    }
  });
}

TEST(Attention, CachesHeadsAndDims) {
  const std::vector<Span> spans = {{63, 2}, {0, 7}, {5, 70}, {200, 1}};
  int index = 0;
  for (const DType cache : {DType::e4m3, DType::e5m2, DType::bf16, DType::f32}) {
    for (const bool fp8 : {true, false}) {
      if (fp8 && !is_fp8(cache)) continue;
      for (const DType activation : {DType::f32, DType::bf16}) {
        for (const int64_t dim : {64, 72, 128}) {
          const int64_t block_tokens = std::array{16, 64, 128, 1}[static_cast<size_t>(index % 4)];
          const int64_t heads = std::array{4, 6, 9}[static_cast<size_t>(index % 3)];
          const int64_t kv_heads = std::array{4, 2, 3}[static_cast<size_t>(index % 3)];
          run_case({heads, kv_heads, dim, block_tokens, cache, fp8, activation, 0, spans});
          ++index;
        }
      }
    }
  }
}

TEST(Attention, Windows) {
  for (const int64_t window : {1, 17, 64, 100}) {
    for (const DType activation : {DType::f32, DType::bf16}) {
      run_case(
          {4, 2, 64, 16, DType::e4m3, true, activation, window, {{0, 40}, {150, 3}, {1100, 1}}});
      run_case(
          {4, 2, 64, 64, DType::bf16, false, activation, window, {{0, 40}, {150, 3}, {1100, 1}}});
    }
  }
}

// Contexts beyond a group of 1024 tokens (and a split of the rule), where scales change.
TEST(Attention, LongContextsAndGroups) {
  for (const int64_t block_tokens : {16, 64}) {
    for (const bool fp8 : {true, false}) {
      run_case(
          {4, 2, 64, block_tokens, DType::e4m3, fp8, DType::f32, 0, {{1010, 30}, {2047, 2}}, true});
      run_case(
          {4, 2, 72, block_tokens, DType::e5m2, fp8, DType::bf16, 0, {{2100, 1}, {1024, 1}}, true});
    }
    run_case({3, 1, 64, block_tokens, DType::bf16, false, DType::f32, 0, {{1020, 20}, {2100, 1}}});
  }
}

// Scales that differ from token to token, and are no powers of two.
TEST(Attention, ScalesOfTokensAndHeads) {
  for (const auto& [cache, fp8] :
       {std::pair{DType::e4m3, true}, {DType::e4m3, false}, {DType::i8, false}}) {
    for (const DType activation : {DType::f32, DType::bf16}) {
      for (const int64_t block_tokens : {1, 16, 64}) {
        run_case({6,
                  2,
                  72,
                  block_tokens,
                  cache,
                  fp8,
                  activation,
                  0,
                  {{63, 2}, {0, 7}, {5, 70}, {1020, 9}},
                  false,
                  true});
      }
      run_case({4, 4, 64, 16, cache, fp8, activation, 40, {{0, 70}, {1100, 1}}, false, true});
    }
  }
}

// The kernels' results by name.
std::map<std::string, Result> all_results(const Case& c, const Pages& pages, const Cache& cache,
                                          const Floats& q) {
  std::map<std::string, Result> results;
  run_kernels(c, pages, cache, q,
              [&](const std::string& kernel, const Result& r) { results[kernel] = r; });
  return results;
}

std::vector<Case> broken_cases() {
  // A row that sees position 0 only; splits of which a row sees one position; a whole one.
  const std::vector<Span> spans = {{0, 70}, {1020, 10}, {2100, 1}};
  std::vector<Case> cases;
  for (const DType activation : {DType::f32, DType::bf16}) {
    const int64_t window = activation == DType::f32 ? 0 : 40;
    cases.push_back({4, 2, 64, 16, DType::e4m3, true, activation, window, spans});
    cases.push_back({4, 2, 72, 64, DType::e4m3, false, activation, window, spans});
    cases.push_back({4, 2, 64, 16, DType::e5m2, true, activation, window, spans});
    cases.push_back({4, 2, 64, 16, DType::bf16, false, activation, window, spans});
    cases.push_back({4, 2, 64, 16, DType::e4m3, true, activation, window, spans, false, true});
    cases.push_back({6, 2, 64, 16, DType::f32, false, activation, window, spans});
  }
  return cases;
}

// A NaN in a query element is a NaN in all of its row, whatever the row sees.
TEST(Attention, NanInAQueryReachesItsRow) {
  for (const Case& c : broken_cases()) {
    const Pages pages = make_pages(c.spans, c.block_tokens);
    const Cache cache = fill_cache(c, pages);
    const Floats q = queries(c, pages);
    const auto clean = all_results(c, pages, cache, q);
    for (const int64_t element : {int64_t{0}, c.dim - 1}) {
      // The first row, one within, the first beyond a split, the last.
      std::set<size_t> rows;
      Floats bad = q;
      for (const int64_t row : {int64_t{0}, int64_t{69}, int64_t{74}, pages.rows - 1}) {
        const int64_t at = row * c.heads + (row + element) % c.heads;
        rows.insert(static_cast<size_t>(at));
        bad[static_cast<size_t>(at * c.dim + element)] = std::numeric_limits<float>::quiet_NaN();
      }
      run_kernels(c, pages, cache, bad, [&](const std::string& kernel, const Result& got) {
        const Result& before = clean.at(kernel);
        EXPECT_EQ("", broken_rows_differ(got.out, got.lse, before.out, before.lse,
                                         [&](size_t row) { return rows.contains(row); }))
            << kernel << " " << c.name();
      });
    }
  }
}

// A NaN in K is a NaN in the rows that see it, and in no other.
TEST(Attention, NanInAKeyReachesTheRowsThatSeeIt) {
  for (const Case& c : broken_cases()) {
    const Pages pages = make_pages(c.spans, c.block_tokens);
    const Cache cache = fill_cache(c, pages);
    const Floats q = queries(c, pages);
    const auto clean = all_results(c, pages, cache, q);
    for (const auto& [sequence, position] :
         std::vector<std::pair<size_t, int64_t>>{{0, 0}, {0, 37}, {0, 64}, {1, 1024}, {2, 2090}}) {
      for (const bool value : {false, true}) {
        Cache bad = cache;
        const int64_t kv_head = 1;
        (value ? bad.v : bad.k).set_nan(pages.slot_of(sequence, position), kv_head * c.dim + 5);
        const auto sees = [&](size_t row) {
          const int64_t token = static_cast<int64_t>(row) / c.heads;
          const int64_t head = static_cast<int64_t>(row) % c.heads;
          const ops::SequenceRows& s = pages.sequences[sequence];
          const int64_t at = s.first_position + token - s.first_row;
          return token >= s.first_row && token < s.first_row + s.rows &&
                 head / (c.heads / c.kv_heads) == kv_head && at >= position &&
                 (c.window == 0 || at - position < c.window);
        };
        run_kernels(c, pages, bad, q, [&](const std::string& kernel, const Result& got) {
          const Result& before = clean.at(kernel);
          const std::string where =
              fmt::format("{} {} {} of position {}", kernel, c.name(), value ? 'V' : 'K', position);
          if (!value) {
            EXPECT_EQ("", broken_rows_differ(got.out, got.lse, before.out, before.lse, sees))
                << where;
            return;
          }
          // Of V only one output is NaN, and no log-sum-exp.
          EXPECT_EQ(0,
                    std::memcmp(got.lse.data(), before.lse.data(), got.lse.size() * sizeof(float)))
              << where;
          for (size_t i = 0; i < got.out.size(); ++i) {
            const auto dim = static_cast<size_t>(c.dim);
            if (i % dim == 5 && sees(i / dim)) {
              ASSERT_TRUE(std::isnan(got.out[i])) << where;
            } else {
              ASSERT_EQ(got.out[i], before.out[i]) << where;
            }
          }
        });
      }
    }
  }
}

// An infinite query makes scores of +Inf, which are NaN after the maximum is subtracted, and of
// -Inf, which weigh nothing; two of them make Inf - Inf.
TEST(Attention, InfiniteScores) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Case& c : broken_cases()) {
    if (c.fp8) continue;  // there, codes saturate
    const Pages pages = make_pages(c.spans, c.block_tokens);
    const Cache cache = fill_cache(c, pages);
    Floats q = queries(c, pages);
    std::vector<bool> nan;
    for (size_t s = 0; s < pages.sequences.size(); ++s) {
      const ops::SequenceRows& rows = pages.sequences[s];
      for (int64_t i = 0; i < rows.rows * c.heads; ++i) {
        const int64_t position = rows.first_position + i / c.heads, head = i % c.heads;
        const auto at = static_cast<size_t>((rows.first_row * c.heads + i) * c.dim);
        if (i % 5 < 2) q[at + 3] = i % 2 ? kInf : -kInf;
        if (i % 5 == 1) q[at + 9] = kInf;
        bool any = false;
        for (int64_t t = c.window ? std::max<int64_t>(0, position + 1 - c.window) : 0;
             t <= position; ++t) {
          const auto key =
              static_cast<size_t>((t * c.kv_heads + head / (c.heads / c.kv_heads)) * c.dim);
          double score = 0.0;
          for (size_t d = 0; d < static_cast<size_t>(c.dim); ++d) {
            score += double{q[at + d]} * cache.keys[s][key + d];
          }
          any = any || !(score < HUGE_VAL);
        }
        nan.push_back(any);
      }
    }
    run_kernels(c, pages, cache, q, [&](const std::string& kernel, const Result& got) {
      for (size_t i = 0; i < got.out.size(); ++i) {
        ASSERT_EQ(nan[i / static_cast<size_t>(c.dim)], std::isnan(got.out[i]))
            << kernel << " " << c.name() << " row " << i / static_cast<size_t>(c.dim);
      }
    });
  }
}

}  // namespace
}  // namespace octet::conformance
