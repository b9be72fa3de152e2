// The AVX-512 and AMX attention kernels against loops in double precision that follow
// attention_rule.h, and against themselves: chunks, threads and batch mates must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/select.h"
#include "numerics/attention_rule.h"
#include "numerics/half.h"

namespace octet::cpu {
namespace {

namespace rule = attention_rule;

bool have_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

float read(DType type, const std::byte* p) {
  if (type == DType::f32) return *reinterpret_cast<const float*>(p);
  if (type == DType::bf16) return to_float(*reinterpret_cast<const bf16*>(p));
  return fp8_decode(type == DType::e4m3 ? Code::e4m3 : Code::e5m2, static_cast<uint8_t>(*p));
}
void write(DType type, std::byte* p, float x) {
  if (type == DType::f32) {
    *reinterpret_cast<float*>(p) = x;
  } else if (type == DType::bf16) {
    *reinterpret_cast<bf16*>(p) = to_bf16(x);
  } else {
    *p = static_cast<std::byte>(fp8_encode(type == DType::e4m3 ? Code::e4m3 : Code::e5m2, x));
  }
}

// A tensor with its memory. All bytes start as 0xFF, which is a NaN in every type used here.
struct Array {
  std::vector<std::byte> bytes;
  Tensor tensor;
  Array() = default;
  Array(DType type, Shape shape) : bytes(static_cast<size_t>(shape.count()) * size_of(type) + 64) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
    tensor = Tensor(bytes.data(), type, shape);
  }
  Array(const Array& other) : bytes(other.bytes), tensor(other.tensor) {
    tensor.data = bytes.empty() ? nullptr : bytes.data();
  }
  Array& operator=(const Array& other) {
    bytes = other.bytes;
    tensor = other.tensor;
    tensor.data = bytes.empty() ? nullptr : bytes.data();
    return *this;
  }
  std::byte* at(int64_t index) {
    return bytes.data() + static_cast<size_t>(index) * size_of(tensor.type);
  }
  float get(int64_t index) { return read(tensor.type, at(index)); }
  void set(int64_t index, float x) { write(tensor.type, at(index), x); }
};

// One problem, GQA or MLA (kv_heads = 1, rope > 0, dim = kv_lora).
struct Case {
  std::string name;
  int64_t heads = 4, kv_heads = 2, dim = 64, rope = 0;
  DType cache = DType::e4m3, activation = DType::bf16, rope_type = DType::bf16;
  bool fp8 = true;
  int64_t block_tokens = 16, group_tokens = 1024, window = 0;
  bool calibrated = false;  // one scale, not a power of two, instead of one a group
  bool amx = false;         // by the second row of the table
  std::vector<ops::SequenceRows> sequences;  // first_row is filled in
  bool mla() const { return rope > 0; }
  int64_t groups() const { return mla() ? (dim + rule::kLatentGroup - 1) / rule::kLatentGroup : 1; }
};

class World {
 public:
  explicit World(const Case& c) : c_(c), random_(7) {
    int64_t blocks = 3, most = 1;
    int64_t rows = 0;
    for (ops::SequenceRows& s : c_.sequences) {
      s.first_row = rows;
      rows += s.rows;
      const int64_t n = (s.context() + c.block_tokens - 1) / c.block_tokens;
      blocks += n;
      most = std::max(most, n);
    }
    const auto sequences = static_cast<int64_t>(c_.sequences.size());
    table = Array(DType::i32, {sequences, most + 1});  // 0xFFFFFFFF is -1
    std::vector<int32_t> free(static_cast<size_t>(blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random_);
    k = Array(c.cache, {blocks, c.block_tokens, c.kv_heads, c.dim});
    v = k;
    v.tensor.data = v.bytes.data();
    k_scale = Array(DType::f32, {blocks, c.kv_heads});
    v_scale = k_scale;
    if (c.mla()) {
      k = Array(c.cache, {blocks, c.block_tokens, c.dim});
      rope = Array(c.rope_type, {blocks, c.block_tokens, c.rope});
      k_scale = Array(DType::f32, {blocks, c.block_tokens, c.groups()});
    }
    q = Array(c.activation, {rows, c.heads, c.dim});
    fill(q, 1.3f);
    if (c.mla()) {
      q_pe = Array(c.activation, {rows, c.heads, c.rope});
      fill(q_pe, 1.0f);
    }
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t context = c_.sequences[static_cast<size_t>(s)].context();
      for (int64_t p = 0; p < context; ++p) {
        int32_t& id =
            reinterpret_cast<int32_t*>(table.bytes.data())[s * (most + 1) + p / c.block_tokens];
        if (id < 0) {
          id = free.back();
          free.pop_back();
        }
        write_token(id, p);
      }
    }
  }

  // Bytes of positions from `context` on of sequence s become NaN again.
  void poison(int64_t s, int64_t context) {
    const int64_t end = c_.sequences[static_cast<size_t>(s)].context();
    for (int64_t p = context; p < end; ++p) {
      const int64_t slot = slot_of(s, p);
      const auto wipe = [&](Array& a, int64_t per_slot) {
        if (a.bytes.empty()) return;
        std::memset(a.at(slot * per_slot), 0xFF,
                    static_cast<size_t>(per_slot) * size_of(a.tensor.type));
      };
      wipe(k, c_.kv_heads * c_.dim);
      if (c_.mla()) {
        wipe(rope, c_.rope);
        wipe(k_scale, c_.groups());
      } else {
        wipe(v, c_.kv_heads * c_.dim);
      }
    }
  }

  int64_t slot_of(int64_t s, int64_t position) {
    const auto* ids =
        reinterpret_cast<const int32_t*>(table.bytes.data()) + s * table.tensor.shape[1];
    return int64_t{ids[position / c_.block_tokens]} * c_.block_tokens + position % c_.block_tokens;
  }

  const Case& spec() const { return c_; }
  Array table, k, v, rope, k_scale, v_scale, q, q_pe;

 private:
  void fill(Array& a, float scale) {
    for (int64_t i = 0; i < a.tensor.count(); ++i) a.set(i, scale * normal_(random_));
  }
  void write_token(int64_t block, int64_t p) {
    const int64_t slot = block * c_.block_tokens + p % c_.block_tokens;
    const bool codes = is_fp8(c_.cache);
    for (int64_t i = 0; i < c_.kv_heads * c_.dim; ++i) {
      k.set(slot * c_.kv_heads * c_.dim + i, normal_(random_) * (codes ? 40.0f : 1.0f));
      if (!c_.mla())
        v.set(slot * c_.kv_heads * c_.dim + i, normal_(random_) * (codes ? 90.0f : 1.0f));
    }
    for (int64_t i = 0; i < c_.rope; ++i) rope.set(slot * c_.rope + i, normal_(random_));
    if (c_.mla()) {
      for (int64_t g = 0; g < c_.groups(); ++g) {
        k_scale.set(slot * c_.groups() + g, 0.01f + 0.02f * std::abs(normal_(random_)));
      }
    } else {
      for (int64_t h = 0; h < c_.kv_heads; ++h) {
        const auto group = static_cast<float>(p / c_.group_tokens);
        const float grown = std::ldexp(1.0f, static_cast<int>(group) % 3 - 5);
        k_scale.set(block * c_.kv_heads + h, c_.calibrated ? 0.021f : grown);
        v_scale.set(block * c_.kv_heads + h, c_.calibrated ? 0.013f : grown * 2.0f);
      }
    }
  }

  Case c_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_{0.0f, 1.0f};
};

// The same cases, and those of them that AMX runs once more by it, where it can be used.
std::vector<Case> with_amx(std::vector<Case> cases) {
  const CpuCaps caps = detect_caps();
  const size_t count = cases.size();
  for (size_t i = 0; i < count; ++i) {
    Case c = cases[i];
    ops::OpDesc desc;
    desc.op = c.mla() ? "mla_attention" : "attention";
    desc.weight = c.cache;
    desc.activation = c.activation;
    const auto refuses =
        c.mla() ? fast_mla_attention_rows()[1].refuses : fast_attention_rows()[1].refuses;
    if (refuses(desc, caps)) continue;
    c.amx = true;
    c.name += " amx";
    cases.push_back(c);
  }
  return cases;
}

struct Result {
  std::vector<float> out, lse;
};

// Runs `sequences` (by default all rows of the case) and returns rows in the order of the case.
Result run_kernel(World& w, int threads, DType out_type = DType::f32,
                  std::vector<ops::SequenceRows> sequences = {}) {
  const Case& c = w.spec();
  if (sequences.empty()) sequences = c.sequences;
  ThreadPool pool(threads);
  const CpuCaps caps{true, true, threads};
  KernelContext context{pool, caps};
  Array out(out_type, {w.q.tensor.shape[0], c.heads, c.dim});
  Array lse(DType::f32, {w.q.tensor.shape[0], c.heads});
  ops::Batch batch;
  batch.sequences = sequences;
  batch.rows = w.q.tensor.shape[0];
  batch.block_table = w.table.tensor;
  ops::AttentionSpec spec;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  spec.fp8 = c.fp8;
  spec.window = c.window;
  if (c.mla()) {
    ops::MlaCache cache;
    cache.latent = w.k.tensor;
    if (is_fp8(c.cache)) cache.latent_scale = w.k_scale.tensor;
    cache.rope = w.rope.tensor;
    fast_mla_attention_rows()[c.amx ? 1 : 0].launch(context, w.q.tensor, w.q_pe.tensor, cache,
                                                    batch, spec, out.tensor, lse.tensor);
  } else {
    ops::GqaCache cache;
    cache.k = w.k.tensor;
    cache.v = w.v.tensor;
    if (is_fp8(c.cache)) {
      cache.k_scale = w.k_scale.tensor;
      cache.v_scale = w.v_scale.tensor;
    }
    cache.group_tokens = c.group_tokens;
    fast_attention_rows()[c.amx ? 1 : 0].launch(context, w.q.tensor, cache, batch, spec, out.tensor,
                                                lse.tensor);
  }
  Result result;
  for (int64_t i = 0; i < out.tensor.count(); ++i) result.out.push_back(out.get(i));
  for (int64_t i = 0; i < lse.tensor.count(); ++i) result.lse.push_back(lse.get(i));
  return result;
}

// The rule in double precision, for one row.
void reference_row(World& w, int64_t s, int64_t position, int64_t row, int64_t head, double* out,
                   double& lse) {
  const Case& c = w.spec();
  const int64_t kv_head = head / (c.heads / c.kv_heads), d = c.dim;
  std::vector<float> q(static_cast<size_t>(d));
  for (int64_t i = 0; i < d; ++i)
    q[static_cast<size_t>(i)] = w.q.get((row * c.heads + head) * d + i);
  float q_scale = 1.0f;
  if (c.fp8) {
    q_scale = choose_scale(finite_absmax(q.data(), d), rule::kQueryFormat);
    for (float& x : q) {
      x = fp8_decode<Code::e4m3>(quantize_value<Code::e4m3>(x, inverse_scale(q_scale)));
    }
  }
  const double factor = double{1.0f / std::sqrt(static_cast<float>(d))} * 1.4426950408889634;
  const rule::Visible seen = rule::visible(position, c.window);
  const auto key = [&](int64_t slot) { return (slot * c.kv_heads + kv_head) * d; };
  const auto scale = [&](Array& a, int64_t slot, int64_t g) -> float {
    if (!is_fp8(c.cache)) return 1.0f;
    return c.mla() ? w.k_scale.get(slot * c.groups() + g)
                   : a.get(slot / c.block_tokens * c.kv_heads + kv_head);
  };
  double total_max = rule::kNoMax, total_sum = 0.0;
  std::vector<double> total(static_cast<size_t>(d), 0.0);
  for (int64_t split = 0; split < seen.end; split += rule::kSplitTokens) {
    double max = rule::kNoMax, sum = 0.0;
    std::vector<double> o(static_cast<size_t>(d), 0.0);
    for (int64_t first = split; first < std::min(seen.end, split + rule::kSplitTokens);
         first += rule::kTileTokens) {
      const int64_t begin = std::max(first, seen.begin);
      const int64_t end = std::min(first + rule::kTileTokens, seen.end);
      if (begin >= end) continue;
      std::vector<double> x;
      double top = rule::kNoMax;
      for (int64_t t = begin; t < end; ++t) {
        const int64_t slot = w.slot_of(s, t);
        double score = 0.0;
        for (int64_t i = 0; i < d; ++i) {
          score += double{q[static_cast<size_t>(i)]} * w.k.get(key(slot) + i) *
                   scale(w.k_scale, slot, c.mla() ? i / rule::kLatentGroup : 0);
        }
        score *= q_scale;
        for (int64_t i = 0; i < c.rope; ++i) {
          score += double{w.q_pe.get((row * c.heads + head) * c.rope + i)} *
                   w.rope.get(slot * c.rope + i);
        }
        x.push_back(score * factor);
        top = std::max(top, x.back());
      }
      const double next = std::max(max, std::ceil(top)), shrink = std::exp2(max - next);
      max = next;
      sum *= shrink;
      for (double& value : o) value *= shrink;
      for (double& value : x) value = std::exp2(value - max);
      sum = std::accumulate(x.begin(), x.end(), sum);
      for (int64_t g = 0; g < c.groups(); ++g) {
        float most = 0.0f;
        for (int64_t t = begin; t < end; ++t) {
          most = std::max(most, scale(w.v_scale, w.slot_of(s, t), g));
        }
        const float big = rule::value_scale(most, c.mla());
        const int64_t from = c.mla() ? g * rule::kLatentGroup : 0;
        const int64_t to = c.mla() ? std::min(d, from + rule::kLatentGroup) : d;
        for (int64_t t = begin; t < end; ++t) {
          const int64_t slot = w.slot_of(s, t);
          double p = x[static_cast<size_t>(t - begin)] * (scale(w.v_scale, slot, g) / big);
          if (c.fp8) {
            p = double{rule::round_p_e4m3(static_cast<float>(p))} / rule::kPScale;
          } else if (c.activation == DType::bf16 && c.cache != DType::f32) {
            p = to_float(to_bf16(static_cast<float>(p)));
          }
          for (int64_t i = from; i < to; ++i) {
            o[static_cast<size_t>(i)] += p * (c.mla() ? w.k : w.v).get(key(slot) + i) * big;
          }
        }
      }
    }
    if (max == rule::kNoMax) continue;
    const double both = std::max(total_max, max);
    total_sum = total_sum * std::exp2(total_max - both) + sum * std::exp2(max - both);
    for (size_t i = 0; i < o.size(); ++i) {
      total[i] = total[i] * std::exp2(total_max - both) + o[i] * std::exp2(max - both);
    }
    total_max = both;
  }
  for (size_t i = 0; i < total.size(); ++i) out[i] = total[i] / total_sum;
  lse = total_max * std::log(2.0) + std::log(total_sum);
}

void check_case(const Case& c) {
  SCOPED_TRACE(c.name);
  World w(c);
  const Result got = run_kernel(w, 2);
  std::vector<double> want(static_cast<size_t>(c.dim));
  double worst = 0.0, worst_lse = 0.0, error = 0.0, signal = 0.0;
  for (size_t s = 0; s < w.spec().sequences.size(); ++s) {
    const ops::SequenceRows& sequence = w.spec().sequences[s];
    // All rows of short problems; of long ones the first, the last and some between.
    const int64_t step = std::max<int64_t>(1, sequence.rows / 6);
    for (int64_t r = 0; r < sequence.rows;
         r = r + 1 < sequence.rows ? std::min(r + step, sequence.rows - 1) : sequence.rows) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t row = sequence.first_row + r;
        double lse = 0.0;
        reference_row(w, static_cast<int64_t>(s), sequence.first_position + r, row, h, want.data(),
                      lse);
        double largest = 0.0;
        for (double x : want) largest = std::max(largest, std::abs(x));
        for (int64_t i = 0; i < c.dim; ++i) {
          const double g = got.out[static_cast<size_t>((row * c.heads + h) * c.dim + i)];
          const double e = g - want[static_cast<size_t>(i)];
          ASSERT_FALSE(std::isnan(g)) << "row " << row << " head " << h << " dim " << i;
          error += e * e;
          signal += want[static_cast<size_t>(i)] * want[static_cast<size_t>(i)];
          worst = std::max(worst, std::abs(e) / largest);
        }
        const double e = std::abs(got.lse[static_cast<size_t>(row * c.heads + h)] - lse);
        worst_lse = std::max(worst_lse, e / std::max(1.0, std::abs(lse)));
      }
    }
  }
  const double rms = std::sqrt(error / signal);
  std::printf("  %-34s rms %.1e  worst %.1e of the row's largest  lse %.1e\n", c.name.c_str(), rms,
              worst, worst_lse);
  // FP32 rounding, and now and then a P at a tie that rounds the other way (one step of 2^-4 of one
  // P in FP8 mode, 2^-8 with BF16). Without rounding of P nothing but FP32 remains.
  const bool exact_p = !c.fp8 && (c.activation == DType::f32 || c.cache == DType::f32);
  EXPECT_LT(rms, exact_p ? 2e-6 : 5e-4);
  EXPECT_LT(worst, exact_p ? 1e-5 : (c.fp8 ? 2e-2 : 3e-3));
  EXPECT_LT(worst_lse, 2e-6);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Case c) { all.push_back(std::move(c)); };
  const std::vector<ops::SequenceRows> mixed = {{0, 5, 0},    {0, 1, 63}, {0, 1, 64},  {0, 70, 30},
                                                {0, 3, 1022}, {0, 0, 5},  {0, 1, 2099}};
  Case gqa;
  for (int64_t dim : {64, 72, 96, 128, 20}) {
    gqa.dim = dim;
    gqa.sequences = mixed;
    gqa.name = "gqa e4m3 dim " + std::to_string(dim);
    add(gqa);
  }
  gqa.dim = 64;
  gqa.sequences = {{0, 5, 0}, {0, 1, 63}, {0, 70, 30}, {0, 3, 1022}};
  for (DType type : {DType::e4m3, DType::e5m2, DType::bf16, DType::f32}) {
    for (DType activation : {DType::bf16, DType::f32}) {
      for (bool fp8 : {false, true}) {
        Case c = gqa;
        c.cache = type;
        c.activation = activation;
        c.fp8 = fp8;
        c.name = "gqa " + std::string(name_of(type)) + " q " + std::string(name_of(activation)) +
                 (fp8 ? " fp8" : "");
        add(c);
      }
    }
  }
  Case c = gqa;
  c.name = "gqa one head a kv head, block 64";
  c.heads = c.kv_heads = 3;
  c.block_tokens = 64;
  add(c);
  c = gqa;
  c.name = "gqa eight heads, calibrated";
  c.heads = 8;
  c.kv_heads = 1;
  c.calibrated = true;
  add(c);
  c = gqa;
  c.name = "gqa scales change within a tile";
  c.group_tokens = 32;
  add(c);
  c.fp8 = false;
  c.name = "gqa the same, not fp8";
  add(c);
  for (int64_t window : {1, 7, 64, 1000}) {
    Case d = gqa;
    d.window = window;
    d.group_tokens = 48;
    d.name = "gqa window " + std::to_string(window);
    add(d);
  }
  Case mla;
  mla.kv_heads = 1;
  mla.heads = 6;
  mla.sequences = mixed;
  for (int64_t dim : {72, 128, 192, 512}) {
    mla.dim = dim;
    mla.rope = dim == 512 ? 64 : 32;
    mla.name = "mla e4m3 lora " + std::to_string(dim);
    if (dim == 512) mla.sequences = {{0, 30, 50}, {0, 1, 1100}};
    add(mla);
  }
  mla.dim = 192;
  mla.rope = 32;
  mla.block_tokens = 64;
  mla.sequences = {{0, 40, 50}, {0, 1, 1040}, {0, 2, 2}};
  for (DType type : {DType::e4m3, DType::e5m2, DType::bf16, DType::f32}) {
    for (DType activation : {DType::bf16, DType::f32}) {
      for (bool fp8 : {false, true}) {
        Case d = mla;
        d.cache = type;
        d.activation = d.rope_type = activation;
        d.fp8 = fp8;
        d.name = "mla " + std::string(name_of(type)) + " q " + std::string(name_of(activation)) +
                 (fp8 ? " fp8" : "");
        add(d);
      }
    }
  }
  mla.window = 100;
  mla.name = "mla window 100";
  add(mla);
  return with_amx(all);
}

TEST(FastAttention, FollowsTheRule) {
  if (!have_avx512()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const Case& c : cases()) check_case(c);
}

TEST(FastAttention, RoundsOnceToBf16) {
  if (!have_avx512()) GTEST_SKIP() << "needs AVX-512 BF16";
  Case c;
  c.dim = 72;
  c.sequences = {{0, 9, 100}};
  World w(c);
  const Result wide = run_kernel(w, 1), narrow = run_kernel(w, 1, DType::bf16);
  for (size_t i = 0; i < wide.out.size(); ++i) {
    ASSERT_EQ(to_float(to_bf16(wide.out[i])), narrow.out[i]) << i;
  }
}

std::vector<Case> bit_cases() {
  Case gqa;
  gqa.name = "gqa";
  gqa.heads = 6;
  gqa.sequences = {{0, 300, 0}, {0, 40, 2060}, {0, 1, 1500}};
  Case window = gqa;
  window.name = "gqa window, scales within a tile";
  window.window = 100;
  window.group_tokens = 32;
  Case wide = gqa;
  wide.name = "gqa f32";
  wide.cache = wide.activation = DType::f32;
  wide.fp8 = false;
  Case mla = gqa;
  mla.name = "mla";
  mla.kv_heads = 1;
  mla.dim = 192;
  mla.rope = 32;
  Case plain = mla;
  plain.name = "mla bf16";
  plain.cache = DType::bf16;
  plain.fp8 = false;
  return with_amx({gqa, window, wide, mla, plain});
}

TEST(FastAttention, ChunksThreadsAndBatchMatesChangeNoBit) {
  if (!have_avx512()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const Case& c : bit_cases()) {
    SCOPED_TRACE(c.name);
    World w(c);
    const Result whole = run_kernel(w, 1);
    for (int threads : {2, 3}) {
      const Result other = run_kernel(w, threads);
      ASSERT_EQ(0, std::memcmp(whole.out.data(), other.out.data(), whole.out.size() * 4))
          << threads;
      ASSERT_EQ(0, std::memcmp(whole.lse.data(), other.lse.data(), whole.lse.size() * 4))
          << threads;
    }
    // Few rows over a long context: every split is a task of its own where there are threads.
    const ops::SequenceRows& deep = w.spec().sequences[1];
    const int64_t row = deep.first_row + deep.rows - 2;
    const auto at = static_cast<size_t>(row * c.heads * c.dim);
    for (int threads : {1, 3}) {
      const Result part = run_kernel(w, threads, DType::f32,
                                     {{0, 0, 0}, {row, 2, deep.first_position + deep.rows - 2}});
      ASSERT_EQ(0, std::memcmp(&whole.out[at], &part.out[at],
                               static_cast<size_t>(2 * c.heads * c.dim) * 4))
          << threads;
    }
    // Chunks of the first sequence alone; later positions are not written yet, and hold NaN.
    const int64_t rows = w.spec().sequences[0].rows;
    for (int64_t chunk : {1, 7, 64, 300}) {
      for (int64_t r = chunk == 1 ? 285 : 0; r < rows; r += chunk) {
        if (chunk < 64 && r > 20 && r + 20 < rows) continue;  // both ends are enough
        const int64_t count = std::min(chunk, rows - r);
        World past = w;
        past.poison(0, r + count);
        const Result part = run_kernel(past, chunk == 7 ? 2 : 1, DType::f32, {{r, count, r}});
        const auto from = static_cast<size_t>(r * c.heads);
        const auto n = static_cast<size_t>(count * c.heads);
        const auto d = static_cast<size_t>(c.dim);
        ASSERT_EQ(0, std::memcmp(&whole.out[from * d], &part.out[from * d], n * d * 4))
            << "rows " << r << " + " << count;
        ASSERT_EQ(0, std::memcmp(&whole.lse[from], &part.lse[from], n * 4)) << r;
      }
    }
  }
}

// A NaN in the value of a token of this very chunk reaches no earlier row.
TEST(FastAttention, MaskedValuesAreSelectedAway) {
  if (!have_avx512()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (Case c : bit_cases()) {
    SCOPED_TRACE(c.name);
    c.sequences = {{0, 100, 20}};
    World w(c), bad(c);
    const int64_t at = 70;  // the position whose V is NaN
    const int64_t slot = bad.slot_of(0, at), width = c.kv_heads * c.dim;
    Array& values = c.mla() ? bad.k : bad.v;
    std::memset(values.at(slot * width), 0xFF, static_cast<size_t>(width) * size_of(c.cache));
    const Result clean = run_kernel(w, 1), got = run_kernel(bad, 1);
    const auto before = static_cast<size_t>((at - 20) * c.heads * c.dim);
    ASSERT_EQ(0, std::memcmp(clean.out.data(), got.out.data(), before * 4));
    EXPECT_TRUE(std::isnan(got.out[before]));
  }
}

TEST(FastAttention, RefusesWhatItCannotRun) {
  const AttentionRow& row = fast_attention_rows()[0];
  ops::OpDesc desc;
  desc.op = "attention";
  desc.weight = DType::e4m3;
  EXPECT_FALSE(row.refuses(desc, CpuCaps{true, true, 2}).has_value());
  EXPECT_TRUE(row.refuses(desc, CpuCaps{true, false, 2}).has_value());
  desc.weight = DType::i8;
  EXPECT_TRUE(row.refuses(desc, CpuCaps{true, true, 2}).has_value());
}

}  // namespace
}  // namespace octet::cpu
