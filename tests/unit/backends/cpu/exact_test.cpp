// The bits of the exact kernels: the same on every ISA and thread count, and the order that
// exact_loops.h draws.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/exact_quantize.h"
#include "base/hash.h"
#include "base/philox.h"
#include "numerics/half.h"

namespace octet::cpu {
namespace {

std::vector<float> values(uint64_t seed, int64_t n) {
  Philox random(seed);
  std::vector<float> result;
  for (int64_t i = 0; i < n; ++i) result.push_back(random.uniform() * 4.0f - 2.0f);
  return result;
}

// The order of exact_loops.h, written down once more, one operation at a time.
float dot_by_the_book(const float* x, const float* w, int64_t n, int64_t segment, const float* xs,
                      const float* ws) {
  float total = 0.0f;
  for (int64_t begin = 0, s = 0; begin < n; begin += segment, ++s) {
    volatile float lane[16] = {};  // volatile: nothing may be reordered or kept in more bits
    for (int64_t k = begin; k < std::min(n, begin + segment); ++k) {
      const volatile float product = x[k] * w[k];
      lane[(k - begin) % 16] = lane[(k - begin) % 16] + product;
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    }
    volatile float block = lane[0];
    if (ws) block = block * ws[s];
    if (xs) block = block * xs[s];
    total = total + block;
  }
  return total;
}

TEST(ExactLoops, DotRowsFollowTheBook) {
  for (const int64_t n : {1, 15, 16, 72, 128, 130, 200, 576, 1000}) {
    for (const int64_t step : {0, 32, 48, 128}) {
      for (const int64_t rows : {1, 2, 3, 5}) {
        const Segments segments = segments_of(n, step);
        const int64_t cols = 7;
        const std::vector<float> x = values(1, rows * n), w = values(2, cols * n);
        const std::vector<float> xs = values(3, rows * segments.count),
                                 ws = values(4, cols * segments.count);
        const auto spread = [&](const std::vector<float>& from, int64_t count) {
          std::vector<float> to(static_cast<size_t>(count * segments.stride()));
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t k = 0; k < n; ++k) {
              to[static_cast<size_t>(r * segments.stride() + k / segments.length * segments.padded +
                                     k % segments.length)] = from[static_cast<size_t>(r * n + k)];
            }
          }
          return to;
        };
        const std::vector<float> xp = spread(x, rows), wp = spread(w, cols);
        std::vector<float> out(static_cast<size_t>(rows * cols));
        dot_rows(segments, {xp.data(), xs.data(), rows}, {wp.data(), ws.data(), cols}, out.data(),
                 cols);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; ++j) {
            EXPECT_EQ(
                out[static_cast<size_t>(i * cols + j)],
                dot_by_the_book(x.data() + i * n, w.data() + j * n, n, segments.length,
                                xs.data() + i * segments.count, ws.data() + j * segments.count))
                << n << " " << step << " " << i << " " << j;
          }
        }
        EXPECT_EQ(dot(x.data(), w.data(), n),
                  dot_by_the_book(x.data(), w.data(), n, 128, nullptr, nullptr));
      }
    }
  }
}

TEST(ExactLoops, ConversionsMatchTheirDefinitions) {
  std::vector<uint8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  for (const auto& [type, fp8] : {std::pair{DType::e4m3, Code::e4m3}, {DType::e5m2, Code::e5m2}}) {
    std::vector<float> got(256);
    load_floats(type, codes.data(), 256, got.data());
    for (size_t i = 0; i < 256; ++i) {
      const float want = fp8_decode(fp8, codes[i]);
      EXPECT_EQ(std::memcmp(&got[i], &want, 4), 0) << i;
    }
  }
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> as_bf16(65536), as_f16(65536);
  load_floats(DType::bf16, halves.data(), 65536, as_bf16.data());
  load_floats(DType::f16, halves.data(), 65536, as_f16.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float b = to_float(bf16{halves[i]}), h = to_float(fp16{halves[i]});
    EXPECT_EQ(std::memcmp(&as_bf16[i], &b, 4), 0) << i;
    EXPECT_EQ(std::memcmp(&as_f16[i], &h, 4), 0) << i;
  }
  // Encoding, over floats of every exponent.
  std::vector<float> x;
  Philox random(9);
  for (int i = 0; i < 100000; ++i) x.push_back(std::bit_cast<float>(random.bits()));
  std::vector<uint8_t> e4m3(x.size()), e5m2(x.size());
  std::vector<uint16_t> bf(x.size());
  encode_row(Code::e4m3, x.data(), static_cast<int64_t>(x.size()), 1.0f, e4m3.data());
  encode_row(Code::e5m2, x.data(), static_cast<int64_t>(x.size()), 1.0f, e5m2.data());
  store_floats(DType::bf16, x.data(), static_cast<int64_t>(x.size()), bf.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(e4m3[i], fp8_encode(Code::e4m3, x[i])) << i;
    ASSERT_EQ(e5m2[i], fp8_encode(Code::e5m2, x[i])) << i;
    ASSERT_EQ(bf[i], to_bf16(x[i]).bits) << i;
  }
}

// Everything that a step does, on 1, 2 and 3 threads: one hash over all outputs.
uint64_t hash_of_a_step(int threads, const std::string& kernels) {
  CpuBackend backend({.threads = threads, .kernels = kernels});
  Hash64 hash;
  const auto add = [&](const std::vector<float>& v) { hash.add(std::as_bytes(std::span(v))); };
  const int64_t rows = 37, hidden = 200, heads = 4, dim = 64, blocks = 8, block_tokens = 16;
  std::vector<float> x = values(1, rows * hidden), w = values(2, heads * dim * hidden),
                     weight = values(3, hidden);
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32};
  std::vector<uint8_t> codes(w.size());
  std::vector<float> scales(static_cast<size_t>(heads * dim));
  octet::quantize(w, heads * dim, hidden, row, codes, scales);
  const auto tensor = [](auto& data, DType type, Shape shape) {
    return Tensor(data.data(), type, shape);
  };

  std::vector<float> normed(x.size());
  backend.rms_norm(tensor(x, DType::f32, {rows, hidden}),
                   {tensor(weight, DType::f32, {hidden}), 1e-6f},
                   tensor(normed, DType::f32, {rows, hidden}));
  add(normed);
  ops::Linear lin;
  lin.out = heads * dim;
  lin.in = hidden;
  lin.quant = {tensor(codes, DType::e4m3, {heads * dim, hidden}),
               tensor(scales, DType::f32, {heads * dim, 1}), row};
  lin.input = row;
  std::vector<float> q(static_cast<size_t>(rows * heads * dim)), out(q.size());
  backend.linear(tensor(normed, DType::f32, {rows, hidden}), lin,
                 tensor(q, DType::f32, {rows, heads * dim}));
  add(q);

  ops::GqaCache cache;
  std::vector<uint8_t> k(static_cast<size_t>(blocks * block_tokens * 2 * dim)), v(k.size());
  std::vector<float> ks(static_cast<size_t>(blocks * 2)), vs(ks), ka(ks), va(ks);
  cache.k = tensor(k, DType::e4m3, {blocks, block_tokens, 2, dim});
  cache.v = tensor(v, DType::e4m3, {blocks, block_tokens, 2, dim});
  cache.k_scale = tensor(ks, DType::f32, {blocks, 2});
  cache.v_scale = tensor(vs, DType::f32, {blocks, 2});
  cache.k_absmax = tensor(ka, DType::f32, {blocks, 2});
  cache.v_absmax = tensor(va, DType::f32, {blocks, 2});
  ops::Batch batch;
  std::vector<int32_t> table = {3, 0, 5, -1};
  batch.rows = rows;
  batch.sequences = {{0, rows, 0}};
  batch.block_table = tensor(table, DType::i32, {1, 4});
  const Tensor heads_q = tensor(q, DType::f32, {rows, heads, dim});
  const Tensor kv = heads_q;
  Tensor two = kv;
  two.shape = {rows, 2, dim};
  backend.kv_write(two, two, cache, batch);
  backend.attention(heads_q, cache, batch, {0.125f, true, 0},
                    tensor(out, DType::f32, {rows, heads, dim}), {});
  add(out);
  hash.add(std::as_bytes(std::span(k)));

  std::vector<float> logits = values(7, 5 * 1000), logprobs(5);
  std::vector<int32_t> tokens(5), ranks(5);
  std::vector<ops::SampleRow> how(
      5, {.temperature = 0.9f, .top_k = 40, .top_p = 0.9f, .seed = 3, .position = 2});
  backend.sample(tensor(logits, DType::f32, {5, 1000}),
                 Tensor(how.data(), DType::u8, {5, sizeof(ops::SampleRow)}), {},
                 {tensor(tokens, DType::i32, {5}),
                  tensor(logprobs, DType::f32, {5}),
                  tensor(ranks, DType::i32, {5}),
                  {},
                  {}});
  add(logprobs);
  hash.add(std::as_bytes(std::span(tokens)));
  return hash.value();
}

TEST(Bits, DoNotDependOnTheNumberOfThreads) {
  for (const std::string kernels : {"exact", "auto", "portable"}) {
    const uint64_t one = hash_of_a_step(1, kernels);
    EXPECT_EQ(hash_of_a_step(2, kernels), one) << kernels;
    EXPECT_EQ(hash_of_a_step(3, kernels), one) << kernels;
  }
}

// The reference is a promise across machines and compilers, so its bits are written down here. A
// change of this number is a change of the reference: say why in the commit.
TEST(Bits, OfTheReferenceAreWrittenDown) {
  EXPECT_EQ(hash_of_a_step(2, "exact"), 0x7c46e3908927cd21ull);
}

}  // namespace
}  // namespace octet::cpu
