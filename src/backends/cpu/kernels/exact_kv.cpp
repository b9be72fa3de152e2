// Writing K, V and latents into the paged cache.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/exact_quantize.h"
#include "backends/cpu/kernels/paged.h"

namespace octet::cpu {
namespace {

// One of K and V: its cache, its scales and its running absmax.
struct Plane {
  const Tensor& x;
  const Tensor& cache;
  const Tensor& scale;
  const Tensor& absmax;
  const Tensor& fixed;
};

// The scale of a group that starts: kv_layout.h. One bit of headroom over what came before.
float group_scale(float absmax, Code type) {
  if (absmax == 0.0f) return 1.0f;
  return std::max(2.0f * ceil_pow2(absmax / max_of(type)), kMinScale);
}

// One row's codes, with a scale of their own.
void write_scaled(Code code, const std::vector<float>& values, float& scale, uint8_t* codes) {
  const auto n = static_cast<int64_t>(values.size());
  scale = choose_scale(row_absmax(values.data(), n), {code, grids::row, ScaleType::f32});
  encode_row(code, values.data(), n, inverse_scale(scale), codes);
}

// The rows of one sequence and head, in ascending position: scales of blocks depend on the blocks
// before them.
void write_head(const Plane& plane, const ops::GqaCache& cache, const ops::Batch& batch,
                int64_t sequence, int64_t head) {
  const ops::SequenceRows& rows = batch.sequences[static_cast<size_t>(sequence)];
  const int64_t dim = plane.cache.shape[3], block_tokens = plane.cache.shape[1];
  const int64_t kv_heads = plane.cache.shape[2];
  const BlockTable table(batch, sequence, block_tokens, plane.cache.shape[0]);
  const Heads x_heads(plane.x);
  const auto element = static_cast<int64_t>(size_of(plane.cache.type));
  const bool coded = is_code(plane.cache.type), token_heads = coded && cache.token_heads();
  const bool groups = coded && !token_heads && !plane.fixed;
  float* const scales = plane.scale.as<float>();
  float* const absmax = plane.absmax.as<float>();
  std::vector<float> values(static_cast<size_t>(dim));

  float scale = 1.0f, most = 0.0f;  // in force, and running, at the position before
  int64_t cell = -1;                // of the block: index into scales and absmax
  for (int64_t i = 0; i < rows.rows; ++i) {
    const int64_t position = rows.first_position + i, slot = position % block_tokens;
    const int64_t block = table.block_of(position);
    if (coded && !token_heads && (i == 0 || slot == 0)) {
      cell = block * kv_heads + head;
      if (slot != 0) {  // the chunk goes on inside a block
        scale = scales[cell];
        if (groups) most = absmax[cell];
      } else {
        if (groups && i == 0 && position > 0) {
          const int64_t before = table.block_of(position - 1) * kv_heads + head;
          scale = scales[before];
          most = absmax[before];
        }
        if (!groups) {
          scale = plane.fixed.as<const float>()[head];
        } else if (position % cache.group_tokens == 0) {
          scale = position == 0 ? 1.0f : group_scale(most, code_of(plane.cache.type));
        }
        scales[cell] = scale;
      }
    }
    load_floats(plane.x.type, x_heads.at(rows.first_row + i, head), dim, values.data());
    const int64_t row = (block * block_tokens + slot) * kv_heads + head;
    char* const to = static_cast<char*>(plane.cache.data) + row * dim * element;
    if (!coded) {
      store_floats(plane.cache.type, values.data(), dim, to);
      continue;
    }
    const Code code = code_of(plane.cache.type);
    if (token_heads) {
      write_scaled(code, values, scales[row], reinterpret_cast<uint8_t*>(to));
      continue;
    }
    encode_row(code, values.data(), dim, inverse_scale(scale), reinterpret_cast<uint8_t*>(to));
    if (groups) {
      most = row_absmax(values.data(), dim, most);
      absmax[cell] = most;
    }
  }
}

void check_plane(const Plane& plane, const ops::GqaCache& cache, const ops::Batch& batch) {
  const Tensor& c = plane.cache;
  bool fits = plane.x && c && c.shape.rank == 4 && c.contiguous() && plane.x.shape.rank == 3 &&
              plane.x.shape[0] == batch.rows && plane.x.shape[1] == c.shape[2] &&
              plane.x.shape[2] == c.shape[3] && is_float_type(plane.x.type);
  if (fits && is_code(c.type) && plane.scale.shape.rank == 3) {
    fits =
        plane.scale.shape == Shape{c.shape[0], c.shape[1], c.shape[2]} && plane.scale.contiguous();
  } else if (fits && is_fp8(c.type)) {
    const int64_t cells = c.shape[0] * c.shape[2];
    fits = plane.scale && plane.scale.count() == cells && plane.scale.contiguous() &&
           (plane.fixed ? plane.fixed.count() == c.shape[2]
                        : plane.absmax && plane.absmax.count() == cells &&
                              plane.absmax.contiguous() && cache.group_tokens % c.shape[1] == 0);
  } else if (fits) {
    fits = is_float_type(c.type);
  }
  if (!fits) {
    unsupported("kv_write", "shapes, types or scales do not fit",
                {{"x", plane.x},
                 {"cache", c},
                 {"scale", plane.scale},
                 {"absmax", plane.absmax},
                 {"fixed", plane.fixed}});
  }
}

}  // namespace

void kv_write(const KernelContext& context, const Tensor& k, const Tensor& v,
              const ops::GqaCache& cache, const ops::Batch& batch) {
  const Plane planes[2] = {{k, cache.k, cache.k_scale, cache.k_absmax, cache.fixed_k_scale},
                           {v, cache.v, cache.v_scale, cache.v_absmax, cache.fixed_v_scale}};
  for (const Plane& plane : planes) check_plane(plane, cache, batch);
  const int64_t heads = cache.k.shape[2], sequences = std::ssize(batch.sequences);
  const int64_t tasks = sequences * heads * 2;
  // A thread takes a few microseconds of work at least.
  const int64_t values =
      std::max<int64_t>(1, batch.rows * cache.k.shape[3] / std::max<int64_t>(1, sequences));
  const int64_t grain = std::max<int64_t>(1, 4096 / values);
  context.threads.parallel_for(tasks, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      write_head(planes[task % 2], cache, batch, task / 2 / heads, task / 2 % heads);
    }
  });
}

void mla_kv_write(const KernelContext& context, const Tensor& latent, const Tensor& k_pe,
                  const ops::MlaCache& cache, const ops::Batch& batch) {
  const int64_t lora = cache.latent.cols(), rope_dim = cache.rope.cols();
  const int64_t groups = (lora + kLatentGroup - 1) / kLatentGroup;
  const bool coded = is_code(cache.latent.type);
  const bool scaled = coded && cache.format.scale != ScaleType::unit;
  if (!latent || !k_pe || latent.rows() != batch.rows || latent.cols() != lora ||
      k_pe.rows() != batch.rows || k_pe.cols() != rope_dim || !cache.latent.contiguous() ||
      !cache.rope.contiguous() || !is_float_type(cache.rope.type) ||
      (coded && cache.latent.type != dtype_of(cache.format.code)) ||
      (scaled && (!cache.latent_scale || !cache.latent_scale.contiguous() ||
                  cache.latent_scale.cols() != groups))) {
    unsupported("mla_kv_write", "shapes, types or scales do not fit",
                {{"latent", latent},
                 {"k_pe", k_pe},
                 {"cache", cache.latent},
                 {"scale", cache.latent_scale},
                 {"rope", cache.rope}});
  }
  const int64_t block_tokens = cache.latent.shape[1];
  const Rows latent_rows(latent), pe_rows(k_pe), cache_rows(cache.latent), rope_rows(cache.rope);
  for (size_t sequence = 0; sequence < batch.sequences.size(); ++sequence) {
    const ops::SequenceRows& rows = batch.sequences[sequence];
    const BlockTable table(batch, static_cast<int64_t>(sequence), block_tokens,
                           cache.latent.shape[0]);
    context.threads.parallel_for(rows.rows, 8, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(std::max(lora, rope_dim)));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = rows.first_row + i;
        const int64_t slot = table.slot_of(rows.first_position + i);
        load_floats(k_pe.type, pe_rows[row], rope_dim, values.data());
        store_floats(cache.rope.type, values.data(), rope_dim, rope_rows[slot]);
        load_floats(latent.type, latent_rows[row], lora, values.data());
        if (!coded) {
          store_floats(cache.latent.type, values.data(), lora, cache_rows[slot]);
          continue;
        }
        auto* const codes = reinterpret_cast<uint8_t*>(cache_rows[slot]);
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t first = group * kLatentGroup, n = std::min(kLatentGroup, lora - first);
          float scale = 1.0f;
          if (scaled) {
            scale = choose_scale(row_absmax(values.data() + first, n), cache.format);
            cache.latent_scale.as<float>()[slot * groups + group] = scale;
          }
          encode_row(cache.format.code, values.data() + first, n, inverse_scale(scale),
                     codes + first);
        }
      }
    });
  }
}

}  // namespace octet::cpu
