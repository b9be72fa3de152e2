// Ops that work row by row: each row's bits depend on that row alone.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/exact_quantize.h"
#include "numerics/exact_math.h"

namespace octet::cpu {
namespace {

// Rows a thread takes at least: a microsecond or two of work. Between the ops of a step workers
// spin, so that they begin sooner than that.
int64_t grain_of(int64_t cols) {
  return std::max<int64_t>(1, 2048 / std::max<int64_t>(cols, 1));
}

OCTET_EXACT_CLONES void scale_row(const float* x, const float* weight, float scale, int64_t n,
                                  float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * scale) * weight[i];
}

void copy_indexed(const KernelContext& context, const char* op, const Tensor& from,
                  const Tensor& indices, const Tensor& out, const char* what) {
  const int64_t count = indices.count(), cols = from.cols(), limit = from.rows();
  if (indices.type != DType::i32 || !indices.contiguous() || out.rows() != count ||
      out.cols() != cols) {
    unsupported(op, "shapes or index type do not fit",
                {{"from", from}, {"indices", indices}, {"out", out}});
  }
  const Rows from_rows(from), out_rows(out);
  context.threads.parallel_for(count, grain_of(cols), [&](int64_t begin, int64_t end, int) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t i = begin; i < end; ++i) {
      const int32_t index = indices.as<const int32_t>()[i];
      if (index < 0 || index >= limit) {
        throw Fault(
            fmt::format("{}: {} {} of row {} is outside [0, {})", op, what, index, i, limit));
      }
      if (from.type == out.type) {
        std::memcpy(out_rows[i], from_rows[index], static_cast<size_t>(cols) * size_of(from.type));
      } else {
        load_floats(from.type, from_rows[index], cols, values.data());
        store_floats(out.type, values.data(), cols, out_rows[i]);
      }
    }
  });
}

}  // namespace

void embed(const KernelContext& context, const Tensor& table, const Tensor& tokens,
           const Tensor& out) {
  copy_indexed(context, "embed", table, tokens, out, "token");
}

void gather_rows(const KernelContext& context, const Tensor& x, const Tensor& rows,
                 const Tensor& out) {
  copy_indexed(context, "gather_rows", x, rows, out, "index");
}

void add(const KernelContext& context, const Tensor& x, const Tensor& y, const Tensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (y.rows() != rows || y.cols() != cols || out.rows() != rows || out.cols() != cols) {
    unsupported("add", "shapes differ", {{"x", x}, {"y", y}, {"out", out}});
  }
  const Rows x_rows(x), y_rows(y), out_rows(out);
  context.threads.parallel_for(rows, grain_of(cols), [&](int64_t begin, int64_t end, int) {
    std::vector<float> a(static_cast<size_t>(cols)), b(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      load_floats(x.type, x_rows[row], cols, a.data());
      load_floats(y.type, y_rows[row], cols, b.data());
      for (int64_t i = 0; i < cols; ++i) a[static_cast<size_t>(i)] += b[static_cast<size_t>(i)];
      store_floats(out.type, a.data(), cols, out_rows[row]);
    }
  });
}

void rms_norm(const KernelContext& context, const Tensor& x, const ops::NormWeight& norm,
              const ops::Activation& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (!norm.weight || norm.weight.count() != cols || !norm.weight.contiguous()) {
    unsupported("rms_norm", "the weight does not fit", {{"x", x}, {"weight", norm.weight}});
  }
  std::vector<float> weight(static_cast<size_t>(cols));
  load_floats(norm.weight.type, norm.weight.data, cols, weight.data());
  const ActivationWriter writer(context, "rms_norm", out, rows, cols);
  const Rows x_rows(x);
  context.threads.parallel_for(rows, grain_of(cols), [&](int64_t begin, int64_t end, int) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      load_floats(x.type, x_rows[row], cols, values.data());
      const float mean = dot(values.data(), values.data(), cols) / static_cast<float>(cols);
      scale_row(values.data(), weight.data(), exact::rsqrt(mean + norm.eps), cols, values.data());
      writer.write(row, values.data());
    }
  });
  writer.finish();
}

void silu_mul(const KernelContext& context, const Tensor& gate, const Tensor& up,
              const ops::Activation& out) {
  const int64_t rows = gate.rows(), cols = gate.cols();
  if (up.rows() != rows || up.cols() != cols) {
    unsupported("silu_mul", "shapes differ", {{"gate", gate}, {"up", up}});
  }
  const ActivationWriter writer(context, "silu_mul", out, rows, cols);
  const Rows gate_rows(gate), up_rows(up);
  context.threads.parallel_for(rows, grain_of(4 * cols), [&](int64_t begin, int64_t end, int) {
    std::vector<float> a(static_cast<size_t>(cols)), b(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      load_floats(gate.type, gate_rows[row], cols, a.data());
      load_floats(up.type, up_rows[row], cols, b.data());
      silu_mul_row(a.data(), b.data(), cols, a.data());
      writer.write(row, a.data());
    }
  });
  writer.finish();
}

void rope(const KernelContext& context, const Tensor& x, const ops::RopeTable& table,
          const Tensor& positions) {
  const int64_t dim = x.cols(), half = dim / 2, tokens = x.shape[0];
  const int64_t heads = x.shape.rank == 3 ? x.shape[1] : 1;
  if (x.shape.rank < 2 || x.shape.rank > 3 || dim % 2 != 0 || table.cos.cols() != half ||
      table.sin.cols() != half || table.cos.type != DType::f32 || table.sin.type != DType::f32 ||
      positions.type != DType::i32 || positions.count() != tokens || !positions.contiguous()) {
    unsupported("rope", "shapes or types do not fit",
                {{"x", x}, {"cos", table.cos}, {"positions", positions}});
  }
  const Rows cos_rows(table.cos), sin_rows(table.sin);
  const Heads x_heads(x);
  context.threads.parallel_for(tokens, grain_of(heads * dim), [&](int64_t begin, int64_t end, int) {
    std::vector<float> values(static_cast<size_t>(dim)), c(static_cast<size_t>(half)),
        s(static_cast<size_t>(half));
    for (int64_t token = begin; token < end; ++token) {
      const int32_t position = positions.as<const int32_t>()[token];
      if (position < 0 || position >= table.cos.rows()) {
        throw Fault(fmt::format("rope: position {} of row {} is outside the table of {}", position,
                                token, table.cos.rows()));
      }
      load_floats(DType::f32, cos_rows[position], half, c.data());
      load_floats(DType::f32, sin_rows[position], half, s.data());
      for (int64_t head = 0; head < heads; ++head) {
        char* const place = x_heads.at(token, head);
        load_floats(x.type, place, dim, values.data());
        // Pairs lie next to each other, or half a head apart.
        const int64_t step = table.interleaved ? 2 : 1, apart = table.interleaved ? 1 : half;
        for (int64_t j = 0; j < half; ++j) {
          float& a = values[static_cast<size_t>(j * step)];
          float& b = values[static_cast<size_t>(j * step + apart)];
          const float rotated = a * c[static_cast<size_t>(j)] - b * s[static_cast<size_t>(j)];
          b = b * c[static_cast<size_t>(j)] + a * s[static_cast<size_t>(j)];
          a = rotated;
        }
        store_floats(x.type, values.data(), dim, place);
      }
    }
  });
}

void scale_heads(const KernelContext& context, const Tensor& x, const Tensor& factors) {
  const bool fits = x.shape.rank == 3 && factors.shape.rank == 2 && factors.type == DType::f32 &&
                    factors.contiguous() && factors.rows() > 0 && factors.cols() == x.shape[2] &&
                    x.shape[1] % factors.rows() == 0 && is_float_type(x.type);
  if (!fits) {
    unsupported("scale_heads", "shapes or types do not fit", {{"x", x}, {"factors", factors}});
  }
  const int64_t heads = x.shape[1], dim = x.shape[2], shared = heads / factors.rows();
  const Heads x_heads(x);
  const auto* const all_factors = factors.as<const float>();
  context.threads.parallel_for(x.shape[0], grain_of(heads * dim),
                               [&](int64_t begin, int64_t end, int) {
                                 std::vector<float> values(static_cast<size_t>(dim));
                                 for (int64_t token = begin; token < end; ++token) {
                                   for (int64_t head = 0; head < heads; ++head) {
                                     char* const place = x_heads.at(token, head);
                                     const float* const factor = all_factors + head / shared * dim;
                                     load_floats(x.type, place, dim, values.data());
                                     for (size_t i = 0; i < values.size(); ++i)
                                       values[i] *= factor[i];
                                     store_floats(x.type, values.data(), dim, place);
                                   }
                                 }
                               });
}

}  // namespace octet::cpu
