// MLA's products with the halves of kv_b on tiles of AMX, for weights that BF16 holds exactly. A
// head's weights are decoded once, as operands; up to sixteen tokens are the rows of a product.
//
//   absorb   out[t, n] = sum over k of (x[t, k] scale[k]) code[k, n]    pairs of rows of kv_b
//   expand   out[t, n] = (sum over k of x[t, k] code[n, k]) scale[n]    rows of kv_b, transposed
//
// Scales of absorb lie along the sum. They multiply x, and the FP32 product is split into three
// BF16 values, which together hold its 24 bits.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "backends/cpu/kernels/fast_attention_tile.h"
#include "backends/cpu/kernels/fast_mla_absorb.h"

#if defined(__x86_64__)
#include "backends/cpu/kernels/fast_attention_simd.h"
#include "backends/cpu/kernels/simd_amx.h"
#endif

namespace octet::cpu {

std::optional<std::string> amx_mla_absorb_refuses(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!caps.amx_bf16) return "needs amx_bf16, which this CPU lacks";
  if (desc.activation != DType::bf16) {
    return fmt::format("takes activations in bf16, not {}", name_of(desc.activation));
  }
  if (!is_fp8(desc.weight) && desc.weight != DType::bf16) {
    return fmt::format("takes kv_b in e4m3, e5m2 or bf16, not {}", name_of(desc.weight));
  }
  if (desc.weight_format && desc.weight_format->grid.cols % 64 != 0) {
    return fmt::format("takes scales of 64 columns at a time, not {}",
                       desc.weight_format->grid.cols);
  }
  return std::nullopt;
}

#if defined(__x86_64__)
namespace {

constexpr int64_t kSide = 16;       // rows of a product
constexpr int64_t kHalf = 32;       // values that one product sums
constexpr int64_t kChunk = 64;      // outputs at a time: four tiles of sums
constexpr int64_t kBlockRows = 96;  // rows whose activations are converted at a time
constexpr int kParts = 3;           // BF16 values that hold an FP32 value

int64_t padded(int64_t n) {
  return (n + kHalf - 1) / kHalf * kHalf;
}

// One head's product: out [T, outputs] = x [T, inner] * half of kv_b.
struct Product : MlaProduct {
  DType type() const { return kv_b.quant ? kv_b.quant.codes.type : kv_b.plain.type; }
  const std::byte* row(int64_t r) const {
    const Tensor& w = kv_b.quant ? kv_b.quant.codes : kv_b.plain;
    return w.as<const std::byte>() + r * w.row_stride() * static_cast<int64_t>(size_of(w.type));
  }
  // Of a row of kv_b at a column; 1 if there is none.
  float scale(int64_t r, int64_t column) const {
    if (!kv_b.quant) return 1.0f;
    const ScaleGrid grid = kv_b.quant.format.grid;
    const Tensor& scales = kv_b.quant.scales;
    return scales.as<const float>()[(grid.rows == 0 ? 0 : r / grid.rows) * scales.strides[0] +
                                    (grid.cols == 0 ? 0 : column / grid.cols) * scales.strides[1]];
  }
  // Columns of kv_b that share their scales.
  int64_t step() const {
    const bool several = kv_b.quant && kv_b.quant.format.grid.cols != 0;
    return several ? kv_b.quant.format.grid.cols : kv_b.in;
  }

  // Bytes of a head's operand: [inner / 2][outputs] pairs, in chunks of outputs for expand.
  size_t panel_bytes() const {
    const int64_t columns = expands ? (outputs + kChunk - 1) / kChunk * kChunk : padded(outputs);
    return static_cast<size_t>(padded(inner) * columns * 2);
  }
  // And of a block's activations; absorb has them in parts.
  size_t rows_bytes() const {
    return static_cast<size_t>(kBlockRows * padded(inner) * 2 * (expands ? 1 : kParts));
  }
  size_t bytes() const { return (panel_bytes() + rows_bytes() + 63) / 64 * 64; }
};

// For every number of rows: tiles 0 to 3 are sums [rows][16], 4, 6 and 7 parts of x, 5 weights.
// Constants, for one that is built on the spot has to wait for all stores on their way.
constexpr auto kConfigs = [] {
  std::array<simd::TileConfig, kSide + 1> configs{};
  for (int64_t rows = 1; rows <= kSide; ++rows) {
    auto& config = configs[static_cast<size_t>(rows)];
    for (const int tile : {0, 1, 2, 3, 4, 6, 7}) config.set(tile, rows, kSide);
    config.set(5, kSide, kSide);
  }
  return configs;
}();

OCTET_AMX_INLINE void configure(int64_t rows) {
  kConfigs[static_cast<size_t>(rows)].load();
}

// Sum I += every part of x times sixteen columns of weights.
#define OCTET_ADD_COLUMNS(I)               \
  _tile_loadd(5, rows + 64 * (I), b_step); \
  _tile_dpbf16ps(I, 4, 5);                 \
  if constexpr (Parts > 1) {               \
    _tile_dpbf16ps(I, 6, 5);               \
    _tile_dpbf16ps(I, 7, 5);               \
  }

// out [rows][64] = the sum over k in [begin, end) of x, in parts that lie `part` values apart,
// times the weights, of `columns` times sixteen outputs.
template <int Parts>
OCTET_AMX_INLINE void multiply(const uint16_t* x, int64_t x_step, int64_t part, const std::byte* w,
                               int64_t b_step, int64_t begin, int64_t end, int64_t columns,
                               float* out) {
  simd::tile_barrier(x);
  simd::tile_barrier(w);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = begin; k < end; k += kHalf) {
    const std::byte* const rows = w + k / 2 * b_step;
    _tile_loadd(4, x + k, 2 * x_step);
    if constexpr (Parts > 1) {
      _tile_loadd(6, x + part + k, 2 * x_step);
      _tile_loadd(7, x + 2 * part + k, 2 * x_step);
    }
    OCTET_ADD_COLUMNS(0)
    if (columns > 1) {
      OCTET_ADD_COLUMNS(1)
    }
    if (columns > 2) {
      OCTET_ADD_COLUMNS(2)
    }
    if (columns > 3) {
      OCTET_ADD_COLUMNS(3)
    }
  }
  simd::tile_barrier(out);
  _tile_stored(0, out, kChunk * 4);
  if (columns > 1) _tile_stored(1, out + 16, kChunk * 4);
  if (columns > 2) _tile_stored(2, out + 32, kChunk * 4);
  if (columns > 3) _tile_stored(3, out + 48, kChunk * 4);
  simd::tile_barrier(out);
}

std::byte* address(const Tensor& tensor, int64_t token, int64_t head, int64_t column) {
  return static_cast<std::byte*>(tensor.data) +
         (token * tensor.strides[0] + head * tensor.strides[1] + column) *
             static_cast<int64_t>(size_of(tensor.type));
}

// A head's rows of kv_b in pairs: [inner / 2][outputs], zero behind the last.
void load_pairs(const Product& p, int64_t head, std::byte* panel) {
  constexpr int64_t batch = 8;
  const int64_t first = head * p.head_rows + p.first_row, stride = padded(p.outputs);
  for (int64_t k = 0; k < padded(p.inner); k += batch) {
    std::byte* const to = panel + k * stride * 2;
    if (k >= p.inner) {
      std::fill_n(to, batch * stride * 2, std::byte{0});
      continue;
    }
    const std::byte* rows[batch];  // those behind the last meet an x of zero
    for (int64_t i = 0; i < batch; ++i) rows[i] = p.row(first + std::min(k + i, p.inner - 1));
    attention::pair_rows(p.type(), rows, static_cast<int>(p.outputs), static_cast<int>(stride),
                         reinterpret_cast<uint16_t*>(to));
  }
}

// x times the scales of k: [tokens][kParts][padded inner].
OCTET_AVX512 void scale_rows(const Product& p, int64_t head, int64_t token, int64_t count,
                             int64_t column, uint16_t* out) {
  const int64_t stride = padded(p.inner), first = head * p.head_rows + p.first_row;
  for (int64_t k = 0; k < stride; k += 16) {
    alignas(64) float scales[16] = {};
    for (int64_t i = 0; i < std::min<int64_t>(16, p.inner - k); ++i) {
      scales[i] = p.scale(first + k + i, column);
    }
    const __m512 scale = _mm512_load_ps(scales);
    const auto mask = static_cast<__mmask16>(simd::first_lanes(p.inner - k, 16));
    for (int64_t t = 0; t < count; ++t) {
      __m512 rest = _mm512_mul_ps(
          simd::widen_bf16(_mm256_maskz_loadu_epi16(mask, address(p.x, token + t, head, k))),
          scale);
      for (int64_t part = 0; part < kParts; ++part) {
        const __m256i value = _mm512_cvtepi32_epi16(simd::round_to_bf16(rest));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (t * kParts + part) * stride + k),
                            value);
        rest = _mm512_sub_ps(rest, simd::widen_bf16(value));
        // Nothing is left of what is infinite, or no number.
        rest = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), rest);
      }
    }
  }
}

// Sums of 32 outputs, those of even number first, to their places.
OCTET_AVX512 void store_pairs(const float* sums, int64_t count, bool bf16, std::byte* out) {
  const __m512 even = _mm512_load_ps(sums), odd = _mm512_load_ps(sums + 16);
  const auto mask = static_cast<__mmask32>(simd::first_lanes(count, 32));
  if (bf16) {
    _mm512_mask_storeu_epi16(out, mask,
                             _mm512_or_si512(simd::round_to_bf16(even),
                                             _mm512_slli_epi32(simd::round_to_bf16(odd), 16)));
    return;
  }
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_mask_storeu_ps(out, static_cast<__mmask16>(mask), _mm512_permutex2var_ps(even, low, odd));
  _mm512_mask_storeu_ps(out + 64, static_cast<__mmask16>(mask >> 16),
                        _mm512_permutex2var_ps(even, high, odd));
}

OCTET_AMX void absorb_head(const Product& p, int64_t head, int64_t begin, int64_t end,
                           std::byte* memory) {
  alignas(64) float sums[kSide * kChunk];
  auto* const rows = reinterpret_cast<uint16_t*>(memory + p.panel_bytes());
  const int64_t stride = padded(p.inner), b_step = padded(p.outputs) * 4;
  const bool bf16 = p.out.type == DType::bf16;
  load_pairs(p, head, memory);
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t count = std::min(kBlockRows, end - first);
    for (int64_t n = 0; n < p.outputs; n += kChunk) {
      if (n % p.step() == 0) scale_rows(p, head, first, count, n, rows);
      const int64_t columns = std::min(kChunk, padded(p.outputs - n)) / kSide;
      for (int64_t t = 0; t < count; t += kSide) {
        const int64_t group = std::min(kSide, count - t);
        configure(group);
        multiply<kParts>(rows + kParts * t * stride, kParts * stride, stride, memory + 4 * n,
                         b_step, 0, stride, columns, sums);
        for (int64_t r = 0; r < group; ++r) {
          for (int64_t c = 0; c < columns * kSide && n + c < p.outputs; c += 32) {
            store_pairs(sums + r * kChunk + c, std::min<int64_t>(32, p.outputs - n - c), bf16,
                        address(p.out, first + t + r, head, n + c));
          }
        }
      }
    }
  }
  _tile_release();
}

// A head's rows of kv_b as columns: chunks of [inner / 2][64].
void load_columns(const Product& p, int64_t head, std::byte* panel) {
  const int64_t first = head * p.head_rows + p.first_row;
  for (int64_t n = 0; n < p.outputs; n += kSide) {
    const std::byte* rows[kSide];
    for (int64_t i = 0; i < kSide; ++i) rows[i] = p.row(first + std::min(n + i, p.outputs - 1));
    std::byte* const chunk = panel + n / kChunk * (padded(p.inner) / 2 * kChunk * 4);
    attention::column_rows(p.type(), rows, static_cast<int>(p.inner),
                           static_cast<int>(padded(p.inner)),
                           reinterpret_cast<uint32_t*>(chunk) + n % kChunk);
  }
}

// x in the order in which such columns hold k.
OCTET_AVX512 void order_rows(const Product& p, int64_t head, int64_t token, int64_t count,
                             uint16_t* out) {
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  const int64_t stride = padded(p.inner);
  const bool codes = is_fp8(p.type());
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t k = 0; k < stride; k += kHalf) {
      const auto mask = static_cast<__mmask32>(simd::first_lanes(p.inner - k, 32));
      const __m512i x = _mm512_maskz_loadu_epi16(mask, address(p.x, token + t, head, k));
      _mm512_storeu_si512(out + t * stride + k, codes ? _mm512_shuffle_epi8(x, order) : x);
    }
  }
}

OCTET_AMX void expand_head(const Product& p, int64_t head, int64_t begin, int64_t end,
                           std::byte* memory) {
  alignas(64) float sums[kSide * kChunk], totals[kSide * kChunk], scales[kChunk];
  auto* const rows = reinterpret_cast<uint16_t*>(memory + p.panel_bytes());
  const int64_t stride = padded(p.inner), w_row = head * p.head_rows + p.first_row;
  const bool bf16 = p.out.type == DType::bf16;
  load_columns(p, head, memory);
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t count = std::min(kBlockRows, end - first);
    order_rows(p, head, first, count, rows);
    for (int64_t n = 0; n < p.outputs; n += kChunk) {
      const int64_t width = std::min(kChunk, p.outputs - n);
      const int64_t columns = (width + kSide - 1) / kSide;
      const std::byte* const chunk = memory + n / kChunk * (stride / 2 * kChunk * 4);
      for (int64_t t = 0; t < count; t += kSide) {
        const int64_t group = std::min(kSide, count - t);
        configure(group);
        for (int64_t k = 0; k < p.inner; k += p.step()) {
          multiply<1>(rows + t * stride, stride, 0, chunk, kChunk * 4, k,
                      std::min(stride, k + p.step()), columns, sums);
          std::fill_n(scales, kChunk, 0.0f);
          for (int64_t i = 0; i < width; ++i) scales[i] = p.scale(w_row + n + i, k);
          for (int64_t i = 0; i < group * kChunk; i += 16) {
            if (i % kChunk >= columns * kSide) continue;
            const __m512 sum = _mm512_load_ps(sums + i), s = _mm512_load_ps(scales + i % kChunk);
            _mm512_store_ps(totals + i, k == 0
                                            ? _mm512_mul_ps(sum, s)
                                            : _mm512_fmadd_ps(sum, s, _mm512_load_ps(totals + i)));
          }
        }
        for (int64_t r = 0; r < group; ++r) {
          for (int64_t c = 0; c < width; c += 16) {
            const auto mask = static_cast<__mmask16>(simd::first_lanes(width - c, 16));
            std::byte* const out = address(p.out, first + t + r, head, n + c);
            const __m512 x = _mm512_load_ps(totals + r * kChunk + c);
            if (bf16) {
              _mm512_mask_cvtepi32_storeu_epi16(out, mask, simd::round_to_bf16(x));
            } else {
              _mm512_mask_storeu_ps(out, mask, x);
            }
          }
        }
      }
    }
  }
  _tile_release();
}

// A task is one head and a part of the tokens: one part if there are heads for all threads.
void run(const KernelContext& context, const Product& p) {
  const int64_t tokens = p.x.shape[0], heads = p.x.shape[1];
  const int64_t wanted = context.threads.size() == 1 ? 1 : 2 * context.threads.size();
  const int64_t parts = std::clamp<int64_t>((wanted + heads - 1) / heads, 1,
                                            std::max<int64_t>(1, tokens / kBlockRows));
  const int64_t part_tokens = (tokens + parts - 1) / parts;
  std::byte* const memory =
      context.scratch.take(0, static_cast<size_t>(context.threads.size()) * p.bytes());
  std::atomic<int64_t> next{0};
  context.threads.run([&](int thread) {
    std::byte* const mine = memory + static_cast<size_t>(thread) * p.bytes();
    for (int64_t task = next++; task < heads * parts; task = next++) {
      const int64_t head = task / parts, begin = task % parts * part_tokens;
      const int64_t end = std::min(tokens, begin + part_tokens);
      p.expands ? expand_head(p, head, begin, end, mine) : absorb_head(p, head, begin, end, mine);
    }
  });
}

}  // namespace

void amx_mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                    int64_t nope, const Tensor& out) {
  run(context, {absorb_product(q, kv_b, nope, out)});
}

void amx_mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                    int64_t nope, const Tensor& out) {
  run(context, {expand_product(o_latent, kv_b, nope, out)});
}

#else
void amx_mla_absorb(const KernelContext&, const Tensor&, const ops::Linear&, int64_t,
                    const Tensor&) {}
void amx_mla_expand(const KernelContext&, const Tensor&, const ops::Linear&, int64_t,
                    const Tensor&) {}
#endif

}  // namespace octet::cpu
