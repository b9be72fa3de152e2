// rope_kv_write leaves the bits of its parts, rope of Q and of K, then kv_write; rope_kv_attention
// leaves those bits in the cache, and gives what attention gives after them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/paged_cache.h"

namespace octet::conformance {
namespace {

struct Case {
  int64_t heads, kv_heads, dim;
  bool interleaved;
  DType cache, activation;
  std::vector<Span> spans;  // of the second of two steps; the first writes all positions before
  int64_t padding = 0;      // rows and spans that belong to no sequence
  bool attends = false;     // rope_kv_attention, else rope_kv_write
  bool fp8 = false, fixed = false;  // attention in FP8; scales that are given
  int64_t window = 0;
};

ops::RopeTable rope_table(Rig& rig, int64_t positions, int64_t half, bool interleaved) {
  Floats cosines, sines;
  for (int64_t i = 0; i < positions * half; ++i) {
    const double angle = 0.37 * static_cast<double>(i / half) / static_cast<double>(i % half + 1);
    cosines.push_back(static_cast<float>(std::cos(angle)));
    sines.push_back(static_cast<float>(std::sin(angle)));
  }
  return {rig.put(DType::f32, {positions, half}, cosines),
          rig.put(DType::f32, {positions, half}, sines), interleaved};
}

ops::GqaCache make_cache(Rig& rig, const Case& c, const Pages& pages) {
  ops::GqaCache cache;
  cache.group_tokens = 64;
  cache.k = rig.make(c.cache, {pages.blocks, pages.block_tokens, c.kv_heads, c.dim});
  cache.v = rig.make(c.cache, {pages.blocks, pages.block_tokens, c.kv_heads, c.dim});
  for (Tensor* t : {&cache.k_scale, &cache.v_scale, &cache.k_absmax, &cache.v_absmax}) {
    if (is_fp8(c.cache)) *t = rig.make(DType::f32, {pages.blocks, c.kv_heads});
  }
  if (is_fp8(c.cache) && c.fixed) {
    cache.k_absmax = cache.v_absmax = {};
    cache.fixed_k_scale = rig.put(DType::f32, {c.kv_heads}, Floats(c.kv_heads, 0.0625f));
    cache.fixed_v_scale = rig.put(DType::f32, {c.kv_heads}, Floats(c.kv_heads, 0.11f));
  }
  return cache;
}

// The batch of `pages`, and behind it rows that belong to no sequence, as the engine lays out a
// step that a graph replays.
ops::Batch padded_batch(Rig& rig, const Pages& pages, int64_t padding) {
  ops::Batch batch = make_batch(rig, pages);
  if (padding == 0) return batch;
  std::vector<int32_t> positions, spans, row_sequence, table = pages.table;
  for (const ops::SequenceRows& s : pages.sequences) {
    for (int64_t i = 0; i < s.rows; ++i) {
      positions.push_back(static_cast<int32_t>(s.first_position + i));
      row_sequence.push_back(static_cast<int32_t>(spans.size() / 3));
    }
    for (const int64_t value : {s.first_row, s.rows, s.first_position}) {
      spans.push_back(static_cast<int32_t>(value));
    }
  }
  for (int64_t i = 0; i < padding; ++i) {
    batch.sequences.push_back({batch.rows, 0, 0});
    positions.push_back(0);
    row_sequence.push_back(-1);
    spans.insert(spans.end(), {static_cast<int32_t>(batch.rows++), 0, 0});
    table.insert(table.end(), static_cast<size_t>(pages.max_blocks), -1);
  }
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  batch.positions = rig.put({batch.rows}, positions);
  batch.row_sequence = rig.put({batch.rows}, row_sequence);
  batch.spans = rig.put({sequences, 3}, spans);
  batch.block_table = rig.put({sequences, pages.max_blocks}, table);
  return batch;
}

void run_case(const Case& c) {
  const Pages pages = make_pages(c.spans, 16);
  Pages before = pages;
  before.sequences.clear();
  before.rows = 0;
  for (const Span& span : c.spans) {
    before.sequences.push_back({before.rows, span.first_position, 0});
    before.rows += span.first_position;
  }
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    Rig rig(backend);
    const ops::RopeTable table = rope_table(rig, 3000, c.dim / 2, c.interleaved);
    const ops::Batch batch = padded_batch(rig, pages, c.padding);
    const int64_t all_rows = pages.rows + c.padding;

    std::vector<std::vector<uint8_t>> results[2];
    for (const bool fused : {false, true}) {
      const ops::GqaCache cache = make_cache(rig, c, pages);
      if (before.rows > 0) {
        const auto rows = [&](uint64_t seed) {
          return rig.put(c.activation, {before.rows, c.kv_heads, c.dim},
                         random_values(seed, before.rows * c.kv_heads * c.dim));
        };
        backend.kv_write(rows(1), rows(2), cache, make_batch(rig, before));
      }
      const auto rows = [&](uint64_t seed, int64_t heads) {
        return rig.put(c.activation, {all_rows, heads, c.dim},
                       random_values(seed, all_rows * heads * c.dim, 20.0f));
      };
      const Tensor q = rows(3, c.heads), k = rows(4, c.kv_heads), v = rows(5, c.kv_heads);
      const ops::AttentionSpec spec{1.0f / std::sqrt(static_cast<float>(c.dim)), c.fp8, c.window};
      const Tensor out = rig.make(c.activation, {all_rows, c.heads, c.dim});
      if (fused && c.attends) {
        backend.rope_kv_attention(q, k, v, table, cache, batch, spec, out);
      } else if (fused) {
        backend.rope_kv_write(q, k, v, table, cache, batch);
      } else {
        backend.rope(q, table, batch.positions);
        backend.rope(k, table, batch.positions);
        backend.kv_write(k, v, cache, batch);
        if (c.attends) backend.attention(q, cache, batch, spec, out);
      }
      std::vector<Tensor> left{cache.k,       cache.v,        cache.k_scale,
                               cache.v_scale, cache.k_absmax, cache.v_absmax};
      if (c.attends) {
        left.push_back(out);
      } else {
        left.push_back(q.slice(0, pages.rows));
        left.push_back(k.slice(0, pages.rows));
      }
      for (const Tensor& t : left) {
        if (t) results[fused].push_back(rig.get_bytes(t));
      }
    }
    report(c.attends ? "rope_kv_attention" : "rope_kv_write", name,
           fmt::format("h={}/{} dim={} {} kv={} act={} rows={}+{}{}{}", c.heads, c.kv_heads, c.dim,
                       c.interleaved ? "interleaved" : "halves", name_of(c.cache),
                       name_of(c.activation), pages.rows, c.padding, c.fp8 ? " fp8" : "",
                       c.fixed ? " fixed" : ""),
           results[0] == results[1] ? 0.0 : std::numeric_limits<double>::infinity());
  });
}

TEST(RopeKvWrite, EqualsItsParts) {
  const std::vector<Span> decode = {{0, 1}, {15, 1}, {16, 1}, {63, 1}, {64, 1}, {130, 1}},
                          drafts = {{62, 5}, {0, 3}, {128, 1}},
                          chunks = {{60, 140}, {7, 1}, {0, 33}};
  for (const DType cache : {DType::e4m3, DType::e5m2, DType::bf16, DType::f32}) {
    for (const DType activation : {DType::f32, DType::bf16}) {
      for (const bool interleaved : {false, true}) {
        run_case({8, 2, 128, interleaved, cache, activation, decode});
        run_case({3, 3, 72, interleaved, cache, activation, drafts});
        run_case({20, 1, 64, interleaved, cache, activation, decode, 2});
        run_case({4, 2, 64, interleaved, cache, activation, chunks});
      }
    }
  }
}

TEST(RopeKvAttention, EqualsItsParts) {
  const std::vector<Span> decode = {{0, 1}, {15, 1}, {16, 1}, {63, 1}, {64, 1}, {130, 1}},
                          far = {{1023, 1}, {2050, 1}}, chunks = {{60, 140}, {7, 1}, {0, 33}};
  const auto run = [](Case c) {
    c.attends = true;
    run_case(c);
  };
  for (const DType cache : {DType::e4m3, DType::e5m2, DType::bf16}) {
    for (const bool fp8 : {false, true}) {
      for (const bool fixed : {false, true}) {
        const auto bf16 = [&](int64_t heads, int64_t kv_heads, int64_t dim,
                              const std::vector<Span>& spans, int64_t padding = 0,
                              int64_t window = 0) {
          run({heads, kv_heads, dim, false, cache, DType::bf16, spans, padding, true, fp8, fixed,
               window});
        };
        bf16(8, 2, 128, decode);
        bf16(32, 2, 64, decode, 2);
        bf16(2, 2, 256, {{70, 1}});
        bf16(8, 8, 128, far);
        bf16(4, 1, 128, far, 1, 100);
        bf16(20, 1, 64, decode);   // more query heads than a tile has rows
        bf16(64, 64, 64, decode);  // more than clusters have room for
        bf16(4, 2, 64, chunks);
      }
    }
  }
  run({4, 2, 64, true, DType::e4m3, DType::bf16, decode});
  run({4, 2, 72, false, DType::e4m3, DType::bf16, decode});
  run({4, 2, 64, false, DType::e4m3, DType::f32, decode});
}

}  // namespace
}  // namespace octet::conformance
