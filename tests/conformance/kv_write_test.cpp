// What kv_write and mla_kv_write leave in the cache: codes, scales in force and running absmax,
// whole or in chunks, and not a byte elsewhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/paged_cache.h"

namespace octet::conformance {
namespace {

// One plane of a GQA cache after all positions were written: kv_layout.h, in the plainest form.
struct Gqa {
  Plane plane;
  Floats scale, absmax;
};
Gqa expect_plane(const Pages& pages, DType type, int64_t heads, int64_t dim, int64_t group,
                 bool fixed, const std::vector<Floats>& x) {
  Gqa gqa{Plane(type, pages.blocks * pages.block_tokens, heads * dim),
          unused_scales(pages.blocks * heads), unused_scales(pages.blocks * heads)};
  const float max = type == DType::e4m3 ? 448.0f : 57344.0f;
  for (size_t s = 0; s < pages.sequences.size(); ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      float running = 0.0f, scale = 1.0f;
      for (int64_t p = 0; p < pages.sequences[s].context(); ++p) {
        const auto at = x[s].begin() + (p * heads + h) * dim;
        const Floats values(at, at + dim);
        if (fixed) {
          scale = 0.02f * static_cast<float>(h + 1);
        } else if (p > 0 && p % group == 0 && running > 0.0f) {
          scale = std::exp2(std::ceil(std::log2(running / max)) + 1.0f);
        }
        const int64_t slot = pages.slot_of(s, p);
        const auto cell = static_cast<size_t>(slot / pages.block_tokens * heads + h);
        gqa.plane.store(slot, h * dim, values, is_fp8(type) ? scale : 1.0f);
        for (const float v : values) running = std::max(running, std::abs(v));
        gqa.scale[cell] = scale;
        gqa.absmax[cell] = running;
      }
    }
  }
  return gqa;
}

// Bitwise, so that untouched NaNs compare equal.
bool same_bits(Rig& rig, const Tensor& got, const Floats& want) {
  const std::vector<uint8_t> bytes = rig.get_bytes(got);
  Floats values(want.size());
  std::memcpy(values.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) ? !std::isnan(values[i]) : values[i] != want[i]) return false;
  }
  return true;
}

TEST(KvWrite, CodesScalesAndAbsmax) {
  const int64_t heads = 3, dim = 72;
  for (const DType type : {DType::e4m3, DType::e5m2, DType::bf16, DType::f32}) {
    for (const bool fixed : {false, true}) {
      for (const int64_t chunk : {1, 7, 64, 1000}) {
        const int64_t block_tokens = chunk == 7 ? 64 : 16, group = 128;
        const std::vector<Span> whole = {{0, 300}, {0, 130}, {0, 5}};
        const Pages pages = make_pages(whole, block_tokens);
        std::vector<Floats> k, v;
        for (size_t s = 0; s < whole.size(); ++s) {
          k.push_back(random_values(40 + s, whole[s].rows * heads * dim, 2.0f));
          v.push_back(random_values(50 + s, whole[s].rows * heads * dim, 30.0f));
          // Groups of growing and falling size, one of them all zero.
          for (int64_t p = 0; p < whole[s].rows; ++p) {
            const float factor = p < 64 ? 0.0f : static_cast<float>((p / 64 * 3) % 5 + 1) * 20.0f;
            for (int64_t i = 0; i < heads * dim; ++i)
              k[s][static_cast<size_t>(p * heads * dim + i)] *= factor;
          }
        }
        const Gqa want_k = expect_plane(pages, type, heads, dim, group, fixed, k);
        const Gqa want_v = expect_plane(pages, type, heads, dim, group, fixed, v);
        for_each_backend([&](ops::Backend& backend, const std::string& name) {
          Rig rig(backend);
          ops::GqaCache cache;
          cache.group_tokens = group;
          const Shape shape{pages.blocks, block_tokens, heads, dim}, cells{pages.blocks, heads};
          cache.k = rig.make(type, shape);
          cache.v = rig.make(type, shape);
          if (is_fp8(type)) {
            cache.k_scale = rig.make(DType::f32, cells);
            cache.v_scale = rig.make(DType::f32, cells);
            if (fixed) {
              Floats scales;
              for (int64_t h = 0; h < heads; ++h)
                scales.push_back(0.02f * static_cast<float>(h + 1));
              cache.fixed_k_scale = cache.fixed_v_scale = rig.put(DType::f32, {heads}, scales);
            } else {
              cache.k_absmax = rig.make(DType::f32, cells);
              cache.v_absmax = rig.make(DType::f32, cells);
            }
          }
          for (int64_t first = 0; first < 300; first += chunk) {
            Pages step = pages;
            step.sequences.clear();
            step.table.clear();
            step.rows = 0;
            Floats k_rows, v_rows;
            for (size_t s = 0; s < whole.size(); ++s) {
              const int64_t rows = std::min(chunk, whole[s].rows - first);
              if (rows <= 0) continue;
              step.sequences.push_back({step.rows, rows, first});
              step.rows += rows;
              const auto row = pages.table.begin() + static_cast<int64_t>(s) * pages.max_blocks;
              step.table.insert(step.table.end(), row, row + pages.max_blocks);
              const int64_t width = heads * dim;
              k_rows.insert(k_rows.end(), k[s].begin() + first * width,
                            k[s].begin() + (first + rows) * width);
              v_rows.insert(v_rows.end(), v[s].begin() + first * width,
                            v[s].begin() + (first + rows) * width);
            }
            const ops::Batch batch = make_batch(rig, step);
            backend.kv_write(rig.put(DType::f32, {step.rows, heads, dim}, k_rows),
                             rig.put(DType::f32, {step.rows, heads, dim}, v_rows), cache, batch);
          }
          const std::string what = fmt::format("{}{} chunk={} bt={}", name_of(type),
                                               fixed ? " fixed" : "", chunk, block_tokens);
          report("kv_write", name, what,
                 same(rig.get_bytes(cache.k) == want_k.plane.bytes &&
                      rig.get_bytes(cache.v) == want_v.plane.bytes));
          if (!is_fp8(type)) return;
          report("kv_write", name, what + " scales",
                 same(same_bits(rig, cache.k_scale, want_k.scale) &&
                      same_bits(rig, cache.v_scale, want_v.scale)));
          if (fixed) return;
          report("kv_write", name, what + " absmax",
                 same(same_bits(rig, cache.k_absmax, want_k.absmax) &&
                      same_bits(rig, cache.v_absmax, want_v.absmax)));
        });
      }
    }
  }
}

// Each token and head by its own largest value, whatever the chunk.
TEST(KvWrite, ScalesOfTokensAndHeads) {
  const int64_t heads = 3, dim = 72, block_tokens = 16, rows = 50;
  for (const DType type : {DType::e4m3, DType::i8}) {
    for (const int64_t chunk : {int64_t{7}, rows}) {
      const Pages pages = make_pages({{0, rows}}, block_tokens);
      const int64_t slots = pages.blocks * block_tokens, width = heads * dim;
      Floats x = random_values(70, rows * width, 2.0f);
      std::fill_n(x.begin() + 5 * width, dim, 0.0f);  // of a head, all zero
      x[static_cast<size_t>(9 * width)] = std::numeric_limits<float>::infinity();
      Plane want(type, slots, width);
      Floats want_scale = unused_scales(slots * heads);
      for (int64_t p = 0; p < rows; ++p) {
        for (int64_t h = 0; h < heads; ++h) {
          const auto at = x.begin() + p * width + h * dim;
          const Floats values(at, at + dim);
          const float scale = choose_scale(finite_absmax(values.data(), dim),
                                           {code_of(type), grids::row, ScaleType::f32});
          want.store(pages.slot_of(0, p), h * dim, values, scale);
          want_scale[static_cast<size_t>(pages.slot_of(0, p) * heads + h)] = scale;
        }
      }
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        if (!backend.info().kv_token_heads) return;
        Rig rig(backend);
        const Shape shape{pages.blocks, block_tokens, heads, dim};
        ops::GqaCache cache;
        cache.k = rig.make(type, shape);
        cache.v = rig.make(type, shape);
        cache.k_scale = rig.make(DType::f32, {pages.blocks, block_tokens, heads});
        cache.v_scale = rig.make(DType::f32, {pages.blocks, block_tokens, heads});
        for (int64_t first = 0; first < rows; first += chunk) {
          Pages step = pages;
          step.rows = std::min(chunk, rows - first);
          step.sequences = {{0, step.rows, first}};
          const Tensor part =
              rig.put(DType::f32, {step.rows, heads, dim},
                      Floats(x.begin() + first * width, x.begin() + (first + step.rows) * width));
          backend.kv_write(part, part, cache, make_batch(rig, step));
        }
        report("kv_write", name, fmt::format("{} token heads chunk={}", name_of(type), chunk),
               same(rig.get_bytes(cache.k) == want.bytes && rig.get_bytes(cache.v) == want.bytes &&
                    same_bits(rig, cache.k_scale, want_scale) &&
                    same_bits(rig, cache.v_scale, want_scale)));
      });
    }
  }
}

TEST(MlaKvWrite, CodesAndScales) {
  for (const DType type : {DType::e4m3, DType::e5m2, DType::i8, DType::bf16, DType::f32}) {
    for (const ScaleType scale : {ScaleType::f32, ScaleType::e8m0, ScaleType::unit}) {
      for (const int64_t lora : {512, 130, 64}) {
        const int64_t rope = 16, groups = (lora + 127) / 128, block_tokens = 16;
        const bool scaled = is_code(type) && scale != ScaleType::unit;
        const QuantFormat format{is_code(type) ? code_of(type) : Code::e4m3, grids::group128,
                                 scale};
        const Pages pages = make_pages({{0, 20}, {0, 3}}, block_tokens);
        const int64_t slots = pages.blocks * block_tokens;
        const Floats latent = random_values(60, pages.rows * lora),
                     pe = random_values(61, pages.rows * rope);
        Plane want(type, slots, lora), want_rope(DType::bf16, slots, rope);
        Floats want_scales = unused_scales(slots * groups);
        for (size_t s = 0; s < pages.sequences.size(); ++s) {
          for (int64_t p = 0; p < pages.sequences[s].rows; ++p) {
            const int64_t row = pages.sequences[s].first_row + p, slot = pages.slot_of(s, p);
            for (int64_t g = 0; g < groups; ++g) {
              const Floats part(latent.begin() + row * lora + g * 128,
                                latent.begin() + row * lora + std::min(lora, (g + 1) * 128));
              const float chosen =
                  scaled
                      ? choose_scale(finite_absmax(part.data(), static_cast<int64_t>(part.size())),
                                     format)
                      : 1.0f;
              want.store(slot, g * 128, part, chosen);
              want_scales[static_cast<size_t>(slot * groups + g)] = chosen;
            }
            want_rope.store(slot, 0, Floats(pe.begin() + row * rope, pe.begin() + (row + 1) * rope),
                            1.0f);
          }
        }
        for_each_backend([&](ops::Backend& backend, const std::string& name) {
          if (type == DType::i8 && !backend.info().int8) return;
          Rig rig(backend);
          ops::MlaCache cache;
          cache.format = format;
          cache.latent = rig.make(type, {pages.blocks, block_tokens, lora});
          cache.rope = rig.make(DType::bf16, {pages.blocks, block_tokens, rope});
          if (scaled)
            cache.latent_scale = rig.make(DType::f32, {pages.blocks, block_tokens, groups});
          const ops::Batch batch = make_batch(rig, pages);
          backend.mla_kv_write(rig.put(DType::f32, {pages.rows, lora}, latent),
                               rig.put(DType::f32, {pages.rows, rope}, pe), cache, batch);
          report("mla_kv_write", name,
                 fmt::format("{} lora={} {}", name_of(type), lora, octet::to_string(format)),
                 same(rig.get_bytes(cache.latent) == want.bytes &&
                      rig.get_bytes(cache.rope) == want_rope.bytes &&
                      (!scaled || same_bits(rig, cache.latent_scale, want_scales))));
        });
      }
    }
  }
}

}  // namespace
}  // namespace octet::conformance
