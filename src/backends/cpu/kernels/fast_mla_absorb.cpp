#include "backends/cpu/kernels/fast_mla_absorb.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "backends/cpu/kernels/fast_attention_core.h"
#include "backends/cpu/kernels/fast_attention_simd.h"

namespace octet::cpu {

std::optional<std::string> fast_mla_absorb_refuses(const Tensor& activation,
                                                   const ops::Linear& kv_b, const CpuCaps& caps) {
  if (!caps.avx512_bf16) return "needs avx512_bf16, which this CPU lacks";
  if (activation.type != DType::f32 && activation.type != DType::bf16) {
    return fmt::format("takes activations in f32 or bf16, not {}", name_of(activation.type));
  }
  const DType weight = kv_b.quant ? kv_b.quant.codes.type : kv_b.plain.type;
  if (!is_fp8(weight) && weight != DType::bf16 && weight != DType::f32) {
    return fmt::format("takes kv_b in e4m3, e5m2, bf16 or f32, not {}", name_of(weight));
  }
  if (kv_b.bias) return "takes no bias of kv_b";
  return std::nullopt;
}

MlaProduct absorb_product(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                          const Tensor& out) {
  const int64_t heads = q.shape[1];
  const bool fits = q.shape.rank == 3 && out.shape.rank == 3 && q.shape[2] >= nope &&
                    out.shape[0] == q.shape[0] && out.shape[1] == heads &&
                    out.shape[2] == kv_b.in && kv_b.out % heads == 0 && kv_b.out / heads >= nope;
  if (!fits) {
    throw Fault(fmt::format("mla_absorb: q {}, kv_b [{}, {}], nope {}, out {} do not fit together",
                            to_string(q), kv_b.out, kv_b.in, nope, to_string(out)));
  }
  return {.kv_b = kv_b,
          .x = q,
          .out = out,
          .inner = nope,
          .outputs = kv_b.in,
          .head_rows = kv_b.out / heads};
}

MlaProduct expand_product(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                          const Tensor& out) {
  const int64_t heads = o_latent.shape[1];
  const bool fits = o_latent.shape.rank == 3 && out.shape.rank == 3 &&
                    o_latent.shape[2] == kv_b.in && out.shape[0] == o_latent.shape[0] &&
                    out.shape[1] == heads && kv_b.out == heads * (nope + out.shape[2]);
  if (!fits) {
    throw Fault(fmt::format("mla_expand: õ {}, kv_b [{}, {}], nope {}, out {} do not fit together",
                            to_string(o_latent), kv_b.out, kv_b.in, nope, to_string(out)));
  }
  return {.kv_b = kv_b,
          .x = o_latent,
          .out = out,
          .inner = kv_b.in,
          .outputs = out.shape[2],
          .head_rows = kv_b.out / heads,
          .first_row = nope,
          .expands = true};
}

#if defined(__x86_64__)
namespace {

constexpr int kChunk = 64;          // outputs that one pass of the inner loop covers
constexpr int kRows = 6;            // 6 rows x 4 vectors = 24 accumulators
constexpr int64_t kBlockRows = 96;  // rows whose activations are converted at a time

// One head's product: out [T, outputs] = x [T, inner] * panel [inner, outputs].
struct Product : MlaProduct {
  int64_t chunks() const { return (outputs + kChunk - 1) / kChunk; }
  size_t panel_floats() const {
    return static_cast<size_t>((inner + 15) / 16 * 16 * chunks() * kChunk);
  }
  size_t row_floats() const { return static_cast<size_t>((inner + 15) / 16 * 16); }
};

// n codes as FP32, times a scale.
template <Code F>
OCTET_AVX512 void decode_row(const uint8_t* codes, int64_t n, float scale, float* out) {
  const simd::Fp8Table table = simd::load_fp8_table<F>();
  const __m512i order = simd::in_order();
  const __m512 s = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < n; i += 64) {
    const __m512i code = _mm512_maskz_loadu_epi8(simd::first_lanes(n - i, 64), codes + i);
    __m512i halves[2];
    simd::decode_fp8(table, _mm512_permutexvar_epi64(order, code), halves[0], halves[1]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i values = v % 2 == 0 ? _mm512_castsi512_si256(halves[v / 2])
                                        : _mm512_extracti64x4_epi64(halves[v / 2], 1);
      const auto mask = static_cast<__mmask16>(simd::first_lanes(n - i - 16 * v, 16));
      _mm512_mask_storeu_ps(out + i + 16 * v, mask, _mm512_mul_ps(simd::widen_bf16(values), s));
    }
  }
}

// Row `row` of kv_b, columns [0, n), dequantized.
OCTET_AVX512 void load_weights(const ops::Linear& kv_b, int64_t row, int64_t n, float* out) {
  if (!kv_b.quant) {
    const Tensor& w = kv_b.plain;
    const int64_t at = row * w.row_stride();
    for (int64_t i = 0; i < n; i += 16) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(n - i, 16));
      const __m512 x =
          w.type == DType::bf16
              ? simd::widen_bf16(_mm256_maskz_loadu_epi16(mask, w.as<const uint16_t>() + at + i))
              : _mm512_maskz_loadu_ps(mask, w.as<const float>() + at + i);
      _mm512_mask_storeu_ps(out + i, mask, x);
    }
    return;
  }
  const QuantTensor& w = kv_b.quant;
  const ScaleGrid grid = w.format.grid;
  const uint8_t* codes = w.codes.as<const uint8_t>() + row * w.codes.row_stride();
  const int64_t scale_row = grid.rows == 0 ? 0 : row / grid.rows;
  const int64_t step = grid.cols == 0 ? n : grid.cols;
  for (int64_t i = 0; i < n; i += step) {
    const float scale =
        w.scales
            .as<const float>()[scale_row * w.scales.strides[0] + i / step * w.scales.strides[1]];
    const int64_t count = std::min(step, n - i);
    if (w.codes.type == DType::e4m3) decode_row<Code::e4m3>(codes + i, count, scale, out + i);
    if (w.codes.type == DType::e5m2) decode_row<Code::e5m2>(codes + i, count, scale, out + i);
  }
}

// The panel of one head, in chunks of 64 outputs: [chunk][inner][64]. `row` is scratch.
OCTET_AVX512 void load_panel(const Product& p, int64_t head, float* panel, float* row) {
  const int64_t first = head * p.head_rows + p.first_row;
  const int64_t inner = static_cast<int64_t>(p.row_floats());
  if (!p.expands) {
    for (int64_t k = 0; k < p.inner; ++k) {
      load_weights(p.kv_b, first + k, p.outputs, row);
      for (int64_t n = 0; n < p.outputs; n += kChunk) {
        std::copy_n(row + n, std::min<int64_t>(kChunk, p.outputs - n),
                    panel + (n / kChunk * inner + k) * kChunk);
      }
    }
    return;
  }
  for (int64_t n = 0; n < p.outputs; n += 16) {
    const int64_t count = std::min<int64_t>(16, p.outputs - n);
    for (int64_t i = 0; i < count; ++i) {
      load_weights(p.kv_b, first + n + i, p.inner, row + i * inner);
    }
    for (int64_t k = 0; k < p.inner; k += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = i < count ? _mm512_loadu_si512(row + i * inner + k) : _mm512_setzero_si512();
      }
      simd::transpose16(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        _mm512_storeu_si512(panel + (n / kChunk * inner + k + i) * kChunk + n % kChunk, r[i]);
      }
    }
  }
}

// R rows by 64 outputs. Outputs beyond the last are computed on whatever the panel holds there and
// not stored.
template <int R>
OCTET_AVX512 void multiply(const float* x, int64_t stride, const float* panel, int64_t inner,
                           void* const* out, bool bf16, int outputs) {
  __m512 acc[R][4];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < inner; ++k) {
    const float* b = panel + k * kChunk;
    const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
    const __m512 b2 = _mm512_loadu_ps(b + 32), b3 = _mm512_loadu_ps(b + 48);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(x[r * stride + k]);
      acc[r][0] = _mm512_fmadd_ps(a, b0, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(a, b1, acc[r][1]);
      acc[r][2] = _mm512_fmadd_ps(a, b2, acc[r][2]);
      acc[r][3] = _mm512_fmadd_ps(a, b3, acc[r][3]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(outputs - 16 * v, 16));
      if (bf16) {
        _mm512_mask_cvtepi32_storeu_epi16(static_cast<uint16_t*>(out[r]) + 16 * v, mask,
                                          simd::round_to_bf16(acc[r][v]));
      } else {
        _mm512_mask_storeu_ps(static_cast<float*>(out[r]) + 16 * v, mask, acc[r][v]);
      }
    }
  }
}

void multiply_rows(int rows, const float* x, int64_t stride, const float* panel, int64_t inner,
                   void* const* out, bool bf16, int outputs) {
  switch (rows) {
    case 6:
      return multiply<6>(x, stride, panel, inner, out, bf16, outputs);
    case 5:
      return multiply<5>(x, stride, panel, inner, out, bf16, outputs);
    case 4:
      return multiply<4>(x, stride, panel, inner, out, bf16, outputs);
    case 3:
      return multiply<3>(x, stride, panel, inner, out, bf16, outputs);
    case 2:
      return multiply<2>(x, stride, panel, inner, out, bf16, outputs);
    default:
      return multiply<1>(x, stride, panel, inner, out, bf16, outputs);
  }
}

std::byte* address(const Tensor& tensor, int64_t token, int64_t head, int64_t column) {
  return static_cast<std::byte*>(tensor.data) +
         (token * tensor.strides[0] + head * tensor.strides[1] + column) *
             static_cast<int64_t>(size_of(tensor.type));
}

// Tokens [begin, end) of one head, whose panel is loaded.
void multiply_head(const Product& p, int64_t head, int64_t begin, int64_t end, const float* panel,
                   float* x) {
  const auto stride = static_cast<int64_t>(p.row_floats());
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t count = std::min(kBlockRows, end - first);
    for (int64_t t = 0; t < count; ++t) {
      attention::load_query(address(p.x, first + t, head, 0), p.x.type == DType::bf16,
                            static_cast<int>(p.inner), false, x + t * stride);
    }
    for (int64_t n = 0; n < p.outputs; n += kChunk) {
      for (int64_t t = 0; t < count; t += kRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kRows, count - t));
        void* out[kRows] = {};
        for (int r = 0; r < rows; ++r) out[r] = address(p.out, first + t + r, head, n);
        multiply_rows(rows, x + t * stride, stride, panel + n * stride, p.inner, out,
                      p.out.type == DType::bf16,
                      static_cast<int>(std::min<int64_t>(kChunk, p.outputs - n)));
      }
    }
  }
}

// A task is one head and a part of the tokens: one part if there are heads for all threads.
void run(const KernelContext& context, const Product& p) {
  const int64_t tokens = p.x.shape[0], heads = p.x.shape[1];
  const int64_t wanted = context.threads.size() == 1 ? 1 : 2 * context.threads.size();
  const int64_t parts = std::clamp<int64_t>((wanted + heads - 1) / heads, 1,
                                            std::max<int64_t>(1, tokens / kBlockRows));
  const int64_t part_tokens = (tokens + parts - 1) / parts;
  const size_t panel = p.panel_floats(), rows = static_cast<size_t>(kBlockRows) * p.row_floats();
  const size_t row =
      std::max<size_t>(16 * p.row_floats(), static_cast<size_t>(p.chunks()) * kChunk);
  const auto threads = static_cast<size_t>(context.threads.size());
  float* memory = context.scratch.take<float>(0, threads * (panel + rows + row));
  std::atomic<int64_t> next{0};
  context.threads.run([&](int thread) {
    float* mine = memory + static_cast<size_t>(thread) * (panel + rows + row);
    for (int64_t task = next++; task < heads * parts; task = next++) {
      const int64_t head = task / parts, begin = task % parts * part_tokens;
      load_panel(p, head, mine, mine + panel + rows);
      multiply_head(p, head, begin, std::min(tokens, begin + part_tokens), mine, mine + panel);
    }
  });
}

}  // namespace

void fast_mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                     int64_t nope, const Tensor& out) {
  run(context, {absorb_product(q, kv_b, nope, out)});
}

void fast_mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                     int64_t nope, const Tensor& out) {
  run(context, {expand_product(o_latent, kv_b, nope, out)});
}

#else
void fast_mla_absorb(const KernelContext&, const Tensor&, const ops::Linear&, int64_t,
                     const Tensor&) {}
void fast_mla_expand(const KernelContext&, const Tensor&, const ops::Linear&, int64_t,
                     const Tensor&) {}
#endif

}  // namespace octet::cpu
