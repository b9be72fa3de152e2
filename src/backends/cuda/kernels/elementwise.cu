// embed, take_tokens, add, gather_rows, silu_mul.
#include <cooperative_groups.h>

#include "backends/cuda/kernels/ops.h"
#include "backends/cuda/kernels/row_output.cuh"

namespace octet::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 128;  // of kernels that need not see whole rows

// Blocks (row, columns) of kThreads threads that hold a part of 8 columns each.
dim3 grid_of(int64_t rows, int64_t cols) {
  const int64_t span = kThreads * kPart;
  return {static_cast<unsigned>(rows), static_cast<unsigned>((cols + span - 1) / span)};
}
__device__ __forceinline__ int own_col() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPart;
}

// out[i] = from[indices[i]], or zeros and the fault `kind` if there is no such row. `limit`: rows
// of `from`.
template <typename From, typename To>
__global__ void copy_indexed_kernel(Matrix<const From> from, int64_t limit, const int32_t* indices,
                                    Matrix<To> out, int cols, bool aligned, DeviceFault* fault,
                                    FaultKind kind) {
  allow_next();
  wait_for_previous();
  const int64_t row = blockIdx.x, index = indices[row];
  const int col = own_col();
  Vector<To, kPart> part{};
  if (index >= 0 && index < limit) {
    const Vector<From, kPart> read = load_part(from.row(index), col, cols, aligned);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      if constexpr (std::is_same_v<From, To>) {
        part.v[i] = read.v[i];  // bit for bit, NaNs included
      } else {
        part.v[i] = from_float<To>(to_float(read.v[i]));
      }
    }
  } else if (col == 0) {
    *fault = {kind, static_cast<int32_t>(index)};
  }
  store_part(out.row(row), col, cols, aligned, part);
}

void copy_indexed(const KernelContext& context, const char* op, const Tensor& from,
                  const Tensor& indices, const Tensor& out, FaultKind kind) {
  const int64_t rows = indices.count(), cols = from.cols();
  const bool same = from.type == out.type && size_of(from.type) <= 4;
  if (indices.type != DType::i32 || !indices.contiguous() || out.rows() != rows ||
      out.cols() != cols || !(same || (is_float_type(from.type) && is_float_type(out.type)))) {
    unsupported(op, "shapes or types do not fit",
                {{"from", from}, {"indices", indices}, {"out", out}});
  }
  if (rows == 0 || cols == 0) return;
  const bool aligned = cols % kPart == 0 && rows_aligned(from, 16) && rows_aligned(out, 16);
  const auto start = [&](auto from_tag, auto to_tag) {
    using From = typename decltype(from_tag)::type;
    using To = typename decltype(to_tag)::type;
    launch(context, copy_indexed_kernel<From, To>, grid_of(rows, cols), dim3(kThreads), 0,
           matrix<const From>(from), from.rows(), indices.as<const int32_t>(), matrix<To>(out),
           static_cast<int>(cols), aligned, context.fault, kind);
  };
  if (same) {
    switch (size_of(from.type)) {
      case 1:
        return start(TypeTag<uint8_t>{}, TypeTag<uint8_t>{});
      case 2:
        return start(TypeTag<uint16_t>{}, TypeTag<uint16_t>{});
      default:
        return start(TypeTag<uint32_t>{}, TypeTag<uint32_t>{});
    }
  }
  visit_float_type(from.type, [&](auto from_tag) {
    visit_float_type(out.type, [&](auto to_tag) {
      if constexpr (!std::is_same_v<decltype(from_tag), decltype(to_tag)>) start(from_tag, to_tag);
    });
  });
}

// tokens[i] = sampled[source[i]] where source[i] >= 0. One thread an element.
__global__ void take_tokens_kernel(const int32_t* sampled, int sampled_count, const int32_t* source,
                                   int32_t* tokens, int count) {
  allow_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const int32_t from = source[i];
  // A source beyond what was sampled gives an id that embed faults on. A sample of -1 (its logits
  // were NaN) is reported by its own step.
  if (from >= 0) tokens[i] = from < sampled_count ? max(sampled[from], 0) : -1;
}

// out = x + y, [rows, cols]; may be in place.
template <typename T>
__global__ void add_kernel(Matrix<T> x, Matrix<T> y, Matrix<T> out, int cols, bool aligned) {
  allow_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int col = own_col();
  Vector<T, kPart> a = load_part<T>(x.row(row), col, cols, aligned);
  const Vector<T, kPart> b = load_part<T>(y.row(row), col, cols, aligned);
#pragma unroll
  for (int i = 0; i < kPart; ++i) a.v[i] = from_float<T>(to_float(a.v[i]) + to_float(b.v[i]));
  store_part(out.row(row), col, cols, aligned, a);
}

// out = silu(gate) * up. Block (row, part) holds `Items` * blockDim parts of columns. With scales
// that span a row, the `Cluster` blocks of a row agree on its absmax: each leaves its own with all
// others, in their shared memory.
template <typename T, int Items, int Cluster>
__global__ void __cluster_dims__(1, Cluster, 1) __launch_bounds__(512)
    silu_mul_kernel(Matrix<const T> gate, Matrix<const T> up, int cols, RowOutput<T> out) {
  __shared__ uint32_t maxima[kWarp], ranks[Cluster];
  allow_next();
  // Their memory may be written once all blocks of the cluster have begun.
  if constexpr (Cluster > 1) cg::this_cluster().barrier_arrive();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int first_col = static_cast<int>(blockIdx.y * blockDim.x) * Items * kPart;
  Vector<T, kPart> g[Items], u[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const int col = first_col + static_cast<int>(i * blockDim.x + threadIdx.x) * kPart;
    g[i] = load_part(gate.row(row), col, cols, out.aligned);
    u[i] = load_part(up.row(row), col, cols, out.aligned);
  }
  float values[Items][kPart];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      values[i][j] = silu(to_float(g[i].v[j])) * to_float(u[i].v[j]);
    }
  }
  if constexpr (Cluster > 1) cg::this_cluster().barrier_wait();
  write_row<Items>(out, row, first_col, cols, values, [&](uint32_t absmax) {
    absmax = block_max_once(absmax, maxima);
    if constexpr (Cluster > 1) {
      cg::cluster_group cluster = cg::this_cluster();
      if (threadIdx.x < Cluster) {
        cluster.map_shared_rank(ranks, threadIdx.x)[cluster.block_rank()] = absmax;
      }
      cluster.sync();
#pragma unroll
      for (int i = 0; i < Cluster; ++i) absmax = max(absmax, ranks[i]);
    }
    return absmax;
  });
}

}  // namespace

void embed(const KernelContext& context, const Tensor& table, const Tensor& tokens,
           const Tensor& out) {
  copy_indexed(context, "embed", table, tokens, out, FaultKind::token_outside_vocabulary);
}

void gather_rows(const KernelContext& context, const Tensor& x, const Tensor& rows,
                 const Tensor& out) {
  copy_indexed(context, "gather_rows", x, rows, out, FaultKind::row_outside_matrix);
}

void take_tokens(const KernelContext& context, const Tensor& sampled, const Tensor& source,
                 const Tensor& tokens) {
  const int64_t count = tokens.count();
  for (const Tensor* t : {&sampled, &source, &tokens}) {
    if (!*t || t->type != DType::i32 || !t->contiguous() || source.count() != count) {
      unsupported("take_tokens", "shapes or types do not fit",
                  {{"sampled", sampled}, {"source", source}, {"tokens", tokens}});
    }
  }
  if (count == 0) return;
  launch(context, take_tokens_kernel,
         dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0,
         sampled.as<const int32_t>(), static_cast<int>(sampled.count()), source.as<const int32_t>(),
         tokens.as<int32_t>(), static_cast<int>(count));
}

void add(const KernelContext& context, const Tensor& x, const Tensor& y, const Tensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (y.rows() != rows || y.cols() != cols || out.rows() != rows || out.cols() != cols ||
      y.type != x.type || out.type != x.type || (x.type != DType::f32 && x.type != DType::bf16)) {
    unsupported("add", "shapes or types differ", {{"x", x}, {"y", y}, {"out", out}});
  }
  if (rows == 0 || cols == 0) return;
  bool aligned = cols % kPart == 0;
  for (const Tensor* t : {&x, &y, &out}) aligned &= rows_aligned(*t, 16);
  visit_activation_type(x.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(context, add_kernel<T>, grid_of(rows, cols), dim3(kThreads), 0, matrix<T>(x),
           matrix<T>(y), matrix<T>(out), static_cast<int>(cols), aligned);
  });
}

void silu_mul(const KernelContext& context, const Tensor& gate, const Tensor& up,
              const ops::Activation& out) {
  const int64_t rows = gate.rows(), cols = gate.cols();
  if (up.rows() != rows || up.cols() != cols || up.type != gate.type ||
      (gate.type != DType::f32 && gate.type != DType::bf16)) {
    unsupported("silu_mul", "shapes or types differ", {{"gate", gate}, {"up", up}});
  }
  visit_activation_type(gate.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const ActivationOutput<T> output(context, "silu_mul", out, rows, cols, {gate, up});
    if (rows == 0 || cols == 0) return;
    const auto start = [&](auto kernel, int64_t blocks, unsigned threads) {
      launch(context, kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(blocks)),
             dim3(threads), 0, matrix<const T>(gate), matrix<const T>(up), static_cast<int>(cols),
             output.rows());
    };
    constexpr int64_t kCluster = 8, kMost = 512;  // threads
    const int64_t share = (cols + kCluster - 1) / kCluster;
    if (!output.scale_per_row()) {
      const dim3 grid = grid_of(rows, cols);
      start(silu_mul_kernel<T, 1, 1>, grid.y, kThreads);
    } else if (cols <= kMost * kPart / 2) {
      start(silu_mul_kernel<T, 1, 1>, 1, threads_for(cols, 1));
    } else if (share <= kMost * kPart) {
      start(silu_mul_kernel<T, 1, kCluster>, kCluster, threads_for(share, 1));
    } else if (share <= kMost * kPart * 4) {
      start(silu_mul_kernel<T, 4, kCluster>, kCluster, threads_for(share, 4));
    } else {
      unsupported("silu_mul", "the rows are too wide", {{"gate", gate}});
    }
    output.finish();
  });
}

}  // namespace octet::cuda
