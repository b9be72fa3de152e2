// A row's bits depend on that row alone: not on its batch mates, nor on how a sequence was cut into
// chunks. For every kernel.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/paged_cache.h"

namespace octet::conformance {
namespace {

void expect_same_bytes(const std::string& op, const std::string& kernel, const std::string& name,
                       const std::vector<uint8_t>& got, const std::vector<uint8_t>& want) {
  report(op, kernel, name, got == want ? 0.0 : std::numeric_limits<double>::infinity());
}

TEST(Invariance, LinearRowAloneAndInABatch) {
  struct Formats {
    std::string name;
    std::optional<QuantFormat> weight, input;
    DType plain = DType::f32, activation = DType::f32;
  };
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32},
      group{Code::e4m3, grids::group128, ScaleType::f32},
      block{Code::e4m3, grids::block128, ScaleType::f32};
  for (const Formats& f : {Formats{"f32", {}, {}},
                           {"bf16", {}, {}, DType::bf16, DType::bf16},
                           {"row", row, row},
                           {"block", block, group},
                           {"weights", row, {}, DType::f32, DType::bf16}}) {
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{70, 45, 200}, {19, 128, 576}}) {
      const Floats x = rounded(f.activation, random_values(1, m * k)), w = random_values(2, n * k);
      ops::OpDesc desc{"linear", m,       n,           k, f.weight ? DType::e4m3 : f.plain,
                       f.weight, f.input, f.activation};
      for_each_kernel("linear", desc, [&](ops::Backend& backend, const std::string& kernel) {
        Rig rig(backend);
        ops::Linear lin;
        lin.out = n;
        lin.in = k;
        if (f.weight) {
          lin.quant = rig.put(quantized(*f.weight, n, k, w));
        } else {
          lin.plain = rig.put(f.plain, {n, k}, rounded(f.plain, w));
        }
        lin.input = f.input;
        const Tensor in = rig.put(f.activation, {m, k}, x), out = rig.make(DType::f32, {m, n});
        backend.linear(in, lin, out);
        const std::vector<uint8_t> whole = rig.get_bytes(out);
        for (const int64_t chunk : {1, 2, 5, 16}) {
          const Tensor parts = rig.make(DType::f32, {m, n});
          for (int64_t first = 0; first < m; first += chunk) {
            const int64_t rows = std::min(chunk, m - first);
            backend.linear(in.slice(first, rows), lin, parts.slice(first, rows));
          }
          expect_same_bytes("invariance", kernel,
                            fmt::format("linear {} {}x{}x{} by {}", f.name, m, n, k, chunk),
                            rig.get_bytes(parts), whole);
        }
      });
    }
  }
}

// The chunks of a sequence: [first, first + rows), each a step of its own.
std::vector<Span> chunks_of(int64_t total, int64_t chunk) {
  std::vector<Span> spans;
  for (int64_t first = 0; first < total; first += chunk)
    spans.push_back({first, std::min(chunk, total - first)});
  return spans;
}

// Writes a sequence into a cache and attends to it, chunk by chunk; returns all outputs' bytes.
// `crowd` puts another sequence into every step.
template <typename Step>
void in_chunks(Rig& rig, int64_t total, int64_t chunk, int64_t block_tokens, bool crowd,
               Step step) {
  const Pages whole = make_pages({{0, total}, {0, total}}, block_tokens);
  for (const Span& span : chunks_of(total, chunk)) {
    Pages pages = whole;
    pages.sequences.clear();
    pages.rows = 0;
    if (crowd) {
      pages.sequences.push_back({0, span.rows, span.first_position});
      pages.rows = span.rows;
    }
    pages.sequences.push_back({pages.rows, span.rows, span.first_position});
    const int64_t first_row = pages.rows;
    pages.rows += span.rows;
    // Row 1 of the table is the sequence under test.
    const auto middle = whole.table.begin() + whole.max_blocks;
    pages.table.assign(crowd ? whole.table.begin() : middle, whole.table.end());
    step(make_batch(rig, pages), span, first_row);
  }
}

Tensor block_of_rows(Rig& rig, DType type, const Shape& shape, const Tensor& own, const Span& span,
                     int64_t first_row) {
  // `own` rows of the sequence under test, after rows of something else.
  const Tensor mixed = rig.put(type, shape, random_values(7, shape.count()));
  rig.backend().copy(own.slice(span.first_position, span.rows), mixed.slice(first_row, span.rows));
  return mixed;
}

TEST(Invariance, AttentionInChunks) {
  const int64_t total = 200, heads = 4, kv_heads = 2, dim = 64, block_tokens = 16;
  struct Mode {
    DType cache;
    bool fp8;
    DType activation;
    int64_t window;
  };
  for (const Mode& mode : {Mode{DType::e4m3, true, DType::f32, 0},
                           {DType::e4m3, true, DType::bf16, 70},
                           {DType::bf16, false, DType::bf16, 0},
                           {DType::f32, false, DType::f32, 33}}) {
    ops::OpDesc desc{"attention", 1, heads, dim, mode.cache, {}, {}, mode.activation};
    if (is_fp8(mode.cache))
      desc.weight_format = QuantFormat{Code::e4m3, {0, static_cast<int32_t>(dim)}, ScaleType::f32};
    if (mode.fp8) desc.input_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
    for_each_kernel("attention", desc, [&](ops::Backend& backend, const std::string& kernel) {
      std::vector<uint8_t> whole;
      for (const auto& [chunk, crowd] : {std::pair<int64_t, bool>{total, false},
                                         {total, true},
                                         {1, false},
                                         {7, true},
                                         {64, false}}) {
        Rig rig(backend);
        const Tensor q =
            rig.put(mode.activation, {total, heads, dim}, random_values(3, total * heads * dim));
        const Tensor k = rig.put(mode.activation, {total, kv_heads, dim},
                                 random_values(4, total * kv_heads * dim));
        const Tensor v = rig.put(mode.activation, {total, kv_heads, dim},
                                 random_values(5, total * kv_heads * dim));
        const Pages pages = make_pages({{0, total}, {0, total}}, block_tokens);
        ops::GqaCache cache;
        cache.group_tokens = 64;
        cache.k = rig.make(mode.cache, {pages.blocks, block_tokens, kv_heads, dim});
        cache.v = rig.make(mode.cache, {pages.blocks, block_tokens, kv_heads, dim});
        for (Tensor* t : {&cache.k_scale, &cache.v_scale, &cache.k_absmax, &cache.v_absmax}) {
          if (is_fp8(mode.cache)) *t = rig.make(DType::f32, {pages.blocks, kv_heads});
        }
        const Tensor all = rig.make(mode.activation, {total, heads, dim});
        in_chunks(
            rig, total, chunk, block_tokens, crowd,
            [&](const ops::Batch& batch, const Span& span, int64_t first_row) {
              const auto rows = [&](const Tensor& own, int64_t h) {
                return block_of_rows(rig, mode.activation, {batch.rows, h, dim}, own, span,
                                     first_row);
              };
              backend.kv_write(rows(k, kv_heads), rows(v, kv_heads), cache, batch);
              const Tensor out = rig.make(mode.activation, {batch.rows, heads, dim});
              backend.attention(rows(q, heads), cache, batch, {0.125f, mode.fp8, mode.window}, out);
              backend.copy(out.slice(first_row, span.rows),
                           all.slice(span.first_position, span.rows));
            });
        const std::vector<uint8_t> bytes = rig.get_bytes(all);
        if (whole.empty()) whole = bytes;
        expect_same_bytes(
            "invariance", kernel,
            fmt::format("attention kv={} act={} window={} by {}{}", name_of(mode.cache),
                        name_of(mode.activation), mode.window, chunk, crowd ? " with another" : ""),
            bytes, whole);
      }
    });
  }
}

TEST(Invariance, MlaInChunks) {
  const int64_t total = 150, heads = 3, lora = 192, rope = 16, block_tokens = 16;
  for (const bool fp8 : {true, false}) {
    const DType type = fp8 ? DType::e4m3 : DType::bf16, activation = fp8 ? DType::f32 : DType::bf16;
    const QuantFormat format{Code::e4m3, grids::group128, ScaleType::f32};
    ops::OpDesc desc{"mla_attention", 1, heads, lora, type, {}, {}, activation};
    if (fp8) desc.weight_format = format;
    if (fp8) desc.input_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
    for_each_kernel("mla_attention", desc, [&](ops::Backend& backend, const std::string& kernel) {
      std::vector<uint8_t> whole;
      for (const auto& [chunk, crowd] : {std::pair<int64_t, bool>{total, false},
                                         {total, true},
                                         {1, false},
                                         {7, true},
                                         {64, false}}) {
        Rig rig(backend);
        const Tensor q =
            rig.put(activation, {total, heads, lora}, random_values(3, total * heads * lora));
        const Tensor q_pe =
            rig.put(activation, {total, heads, rope}, random_values(4, total * heads * rope));
        const Tensor latent = rig.put(activation, {total, 1, lora}, random_values(5, total * lora));
        const Tensor k_pe = rig.put(activation, {total, 1, rope}, random_values(6, total * rope));
        const Pages pages = make_pages({{0, total}, {0, total}}, block_tokens);
        ops::MlaCache cache;
        cache.format = format;
        cache.latent = rig.make(type, {pages.blocks, block_tokens, lora});
        cache.rope = rig.make(activation, {pages.blocks, block_tokens, rope});
        if (fp8) cache.latent_scale = rig.make(DType::f32, {pages.blocks, block_tokens, 2});
        const Tensor all = rig.make(activation, {total, heads, lora});
        in_chunks(
            rig, total, chunk, block_tokens, crowd,
            [&](const ops::Batch& batch, const Span& span, int64_t first_row) {
              const auto rows = [&](const Tensor& own, int64_t h, int64_t d) {
                return block_of_rows(rig, activation, {batch.rows, h, d}, own, span, first_row);
              };
              backend.mla_kv_write(rows(latent, 1, lora).reshape({batch.rows, lora}),
                                   rows(k_pe, 1, rope).reshape({batch.rows, rope}), cache, batch);
              const Tensor out = rig.make(activation, {batch.rows, heads, lora});
              backend.mla_attention(rows(q, heads, lora), rows(q_pe, heads, rope), cache, batch,
                                    {0.1f, fp8, 0}, out);
              backend.copy(out.slice(first_row, span.rows),
                           all.slice(span.first_position, span.rows));
            });
        const std::vector<uint8_t> bytes = rig.get_bytes(all);
        if (whole.empty()) whole = bytes;
        expect_same_bytes("invariance", kernel,
                          fmt::format("mla_attention kv={} by {}{}", name_of(type), chunk,
                                      crowd ? " with another" : ""),
                          bytes, whole);
      }
    });
  }
}

void experts_row_alone_and_in_a_batch(int64_t hidden, int64_t inner) {
  const int64_t rows = 23, experts = 4;
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32},
      group{Code::e4m3, grids::group128, ScaleType::f32},
      block{Code::e4m3, grids::block128, ScaleType::f32};
  for (const auto& [weight, input] : {std::pair{row, row}, {block, group}}) {
    ops::OpDesc desc{"moe_experts", rows, inner, hidden, DType::e4m3, weight, input, DType::bf16};
    for_each_kernel("moe_experts", desc, [&](ops::Backend& backend, const std::string& kernel) {
      Rig rig(backend);
      std::vector<ops::GatedMlp> mlps(static_cast<size_t>(experts));
      uint64_t seed = 10;
      const auto fill = [&](ops::Linear& w, int64_t out, int64_t in) {
        w.out = out;
        w.in = in;
        w.quant = rig.put(quantized(weight, out, in, random_values(seed++, out * in, 0.1f)));
        w.input = input;
      };
      for (ops::GatedMlp& mlp : mlps) {
        fill(mlp.gate, inner, hidden);
        fill(mlp.up, inner, hidden);
        fill(mlp.down, hidden, inner);
      }
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < rows; ++i) {
        ids.push_back(static_cast<int32_t>(i % 4));
        ids.push_back(
            static_cast<int32_t>((i * 3 + 1) % 4 == i % 4 ? (i + 2) % 4 : (i * 3 + 1) % 4));
      }
      const Tensor x = rig.put(DType::bf16, {rows, hidden}, random_values(9, rows * hidden));
      const ops::Routing routing{rig.put({rows, 2}, ids),
                                 rig.put(DType::f32, {rows, 2}, random_values(8, rows * 2))};
      const Tensor out = rig.make(DType::bf16, {rows, hidden}),
                   parts = rig.make(DType::bf16, {rows, hidden});
      backend.moe_experts(x, routing, mlps, out);
      for (const int64_t chunk : {1, 5}) {
        for (int64_t first = 0; first < rows; first += chunk) {
          const int64_t n = std::min(chunk, rows - first);
          backend.moe_experts(x.slice(first, n),
                              {routing.experts.slice(first, n), routing.weights.slice(first, n)},
                              mlps, parts.slice(first, n));
        }
        expect_same_bytes("invariance", kernel,
                          fmt::format("moe_experts {}->{} {} by {}", hidden, inner,
                                      octet::to_string(weight), chunk),
                          rig.get_bytes(parts), rig.get_bytes(out));
      }
    });
  }
}

TEST(Invariance, ExpertsRowAloneAndInABatch) {
  experts_row_alone_and_in_a_batch(130, 72);
  experts_row_alone_and_in_a_batch(256, 192);
}

}  // namespace
}  // namespace octet::conformance
