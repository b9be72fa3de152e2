// Rotating Q and K, and writing K and V into the paged cache (ops/kv_layout.h).
//
// A warp handles one head of one token: lane l has elements l, l + 32, ... Steps of a few rows run
// one kernel, whose blocks walk through the rows of a sequence in order, since the scale of a block
// of the cache depends on the positions before it. Longer steps run
//
//   rope, for Q and for K      a thread for each part of a head
//   absmax_kernel              maxima[plane, head, row], all rows at once   } only if block groups
//   running_max_kernel         the same, running along each sequence        } choose the scales
//   kv_write_kernel            codes of all rows at once
#include "backends/cuda/kernels/kv_planes.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

using namespace paged;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeadItems = 8;  // elements of a head that a lane keeps: heads of up to 256
// Rows beyond one a sequence with which the kernel for few rows still runs: drafts, not prompts.
constexpr int64_t kFewRows = 16;

// --- rotation ------------------------------------------------------------------------------------

// Rotates x [T, heads, 2 * half] in place. Thread (part, head of the block), block (token, heads):
// a part is `V` pairs, which are read as vectors if V is 8. Positions outside the table give NaN.
template <typename T, int V>
__global__ void __launch_bounds__(V == 1 ? 1024 : kThreads)
    rope_kernel(Heads<T> x, int heads, Angles angles, const int32_t* positions) {
  allow_next();
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  const int position = positions[token];
  float c[V], s[V];
  const bool known = position >= 0 && position < angles.positions;
  // Heads wider than the block is: the vector form always covers them with one part a thread.
  for (int j = static_cast<int>(threadIdx.x) * V; j < angles.half;
       j += static_cast<int>(blockDim.x) * V) {
    if (known) {
      load_floats<V>(angles.cos.row(position) + j, c);
      load_floats<V>(angles.sin.row(position) + j, s);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) c[i] = s[i] = NAN;
    }
    wait_for_previous();
    if (head >= heads) continue;
    T* const row = x.at(token, head);
    if constexpr (V == 1) {
      T* const pa = row + angles.first(j);
      T* const pb = row + angles.second(j);
      float a = to_float(*pa), b = to_float(*pb);
      rotate(a, b, c[0], s[0]);
      *pa = from_float<T>(a);
      *pb = from_float<T>(b);
    } else {
      T* const low = row + (angles.interleaved ? 2 * j : j);
      T* const high = angles.interleaved ? low + V : low + angles.half;
      float a[V], b[V];
      load_floats<V>(low, a);
      load_floats<V>(high, b);
      if (angles.interleaved) {  // a, b = 16 neighbours: pairs (0, 1), (2, 3), ...
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
          rotate(a[2 * i], a[2 * i + 1], c[i], s[i]);
          rotate(b[2 * i], b[2 * i + 1], c[V / 2 + i], s[V / 2 + i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) rotate(a[i], b[i], c[i], s[i]);
      }
      store_floats<V>(low, a);
      store_floats<V>(high, b);
    }
  }
  wait_for_previous();
}

void check_rope(const char* op, const Tensor& x, const ops::RopeTable& table,
                const Tensor& positions) {
  const int64_t half = x.cols() / 2, tokens = x.shape[0];
  if (!x || x.shape.rank < 2 || x.shape.rank > 3 || x.cols() % 2 != 0 ||
      (x.type != DType::f32 && x.type != DType::bf16) || table.cos.cols() != half ||
      table.sin.cols() != half || table.cos.rows() != table.sin.rows() ||
      table.cos.type != DType::f32 || table.sin.type != DType::f32 ||
      positions.type != DType::i32 || positions.count() != tokens || !positions.contiguous()) {
    unsupported(op, "shapes or types do not fit",
                {{"x", x}, {"cos", table.cos}, {"sin", table.sin}, {"positions", positions}});
  }
}

// --- few rows: one kernel ------------------------------------------------------------------------

// A head in the registers of a warp: value i of a lane is element at[i], -1 if there is none.
struct HeadRow {
  float v[kHeadItems];
  int at[kHeadItems];
};

template <typename T>
__device__ __forceinline__ HeadRow load_head(const T* from, int dim) {
  HeadRow head;
  T raw[kHeadItems];  // all loads first: converting one would wait for it
#pragma unroll
  for (int i = 0; i < kHeadItems; ++i) {
    const int e = static_cast<int>(threadIdx.x % kWarp) + i * kWarp;
    head.at[i] = e < dim ? e : -1;
    raw[i] = T{};
    if (e < dim) raw[i] = from[e];
  }
#pragma unroll
  for (int i = 0; i < kHeadItems; ++i) head.v[i] = to_float(raw[i]);
  return head;
}

// The angles of a lane's pairs, lane + 32 i.
struct LaneAngles {
  float c[kHeadItems / 2], s[kHeadItems / 2];
};
__device__ __forceinline__ LaneAngles load_angles(const Angles& angles, int position) {
  LaneAngles own;
#pragma unroll
  for (int i = 0; i < kHeadItems / 2; ++i) {
    const int j = static_cast<int>(threadIdx.x % kWarp) + i * kWarp;
    own.c[i] = own.s[i] = NAN;
    if (j < angles.half && position < angles.positions) {
      own.c[i] = angles.cos.row(position)[j];
      own.s[i] = angles.sin.row(position)[j];
    }
  }
  return own;
}

// Rotates a head in place and returns it, rounded to T.
template <typename T>
__device__ __forceinline__ HeadRow rotate_head(T* x, const Angles& angles, const LaneAngles& own) {
  constexpr int pairs = kHeadItems / 2;
  HeadRow head;
  T raw[kHeadItems];
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int j = static_cast<int>(threadIdx.x % kWarp) + i * kWarp;
    const bool has = j < angles.half;
    head.at[i] = has ? angles.first(j) : -1;
    head.at[pairs + i] = has ? angles.second(j) : -1;
    raw[i] = raw[pairs + i] = T{};
    if (has) {
      raw[i] = x[head.at[i]];
      raw[pairs + i] = x[head.at[pairs + i]];
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadItems; ++i) head.v[i] = to_float(raw[i]);
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    if (head.at[i] >= 0) rotate(head.v[i], head.v[pairs + i], own.c[i], own.s[i]);
  }
#pragma unroll
  for (int i = 0; i < kHeadItems; ++i) {
    const T rounded = from_float<T>(head.v[i]);
    if (head.at[i] >= 0) x[head.at[i]] = rounded;
    head.v[i] = to_float(rounded);
  }
  return head;
}

// Block (KV head, sequence), warps: 0 K, 1 V, then the Q heads of this KV head (only with Rope).
// Every warp walks through the rows of its sequence alone.
template <typename T, bool Rope>
__global__ void __launch_bounds__(kThreads + 2 * kWarp)
    few_rows_kernel(Heads<T> q, int q_heads, const __grid_constant__ Planes<T> planes,
                    CacheShape shape, Angles angles, Pages pages) {
  allow_next();
  const int head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Span span = pages.span(sequence);
  // What the first row needs of the batch, of the table and of what steps before left in the cache.
  LaneAngles own{};
  if (Rope && warp != 1 && span.rows > 0) own = load_angles(angles, span.first_position);
  int block = warp < 2 && span.rows > 0 ? pages.block_of(sequence, span.first_position) : -1;
  const Plane<T>& plane = planes.of[warp & 1];
  const bool fp8 = is_fp8(plane.type);
  Running running;
  if (fp8 && block >= 0) {
    running.enter(plane, shape, pages, sequence, head, 0, span.first_position, block);
  }
  wait_for_previous();

  if (warp >= 2) {
    const int warps = static_cast<int>(blockDim.x) / kWarp - 2;
    for (int i = 0; i < span.rows; ++i) {
      if (i > 0) own = load_angles(angles, span.first_position + i);
      for (int h = warp - 2; h < q_heads; h += warps) {
        rotate_head(q.at(span.first_row + i, head * q_heads + h), angles, own);
      }
    }
    return;
  }
  for (int i = 0; i < span.rows; ++i) {
    const int position = span.first_position + i, slot = position % pages.block_tokens;
    if (i > 0) {
      if (Rope && warp == 0) own = load_angles(angles, position);
      if (slot == 0) block = pages.block_of(sequence, position);
    }
    if (fp8 && block >= 0) {
      if (i > 0) running.enter(plane, shape, pages, sequence, head, i, position, block);
      if (running.begins && threadIdx.x % kWarp == 0) plane.scale[running.cell] = running.scale;
    }
    T* const x = plane.x.at(span.first_row + i, head);
    const HeadRow row = Rope && warp == 0 ? rotate_head(x, angles, own) : load_head(x, shape.dim);
    if (block < 0) continue;
    const int64_t slot_index = int64_t{block} * pages.block_tokens + slot;
    uint8_t* const to =
        plane.cache + (slot_index * shape.kv_heads + head) * shape.dim * plane.element;
    with_put(plane.type, inverse_scale(running.scale), [&](auto put) {
#pragma unroll
      for (int e = 0; e < kHeadItems; ++e) {
        if (row.at[e] >= 0) put(to, row.at[e], row.v[e]);
      }
    });
    if (!plane.groups()) continue;
    uint32_t absmax = 0;
#pragma unroll
    for (int e = 0; e < kHeadItems; ++e) absmax = max(absmax, finite_magnitude(row.v[e]));
    running.absmax = max(running.absmax, warp_max(absmax));
    if (threadIdx.x % kWarp == 0) plane.absmax[running.cell] = __uint_as_float(running.absmax);
  }
}

// --- many rows -----------------------------------------------------------------------------------

// maxima[plane * kv_heads + head, row] = the absmax of a head of a row, as bits. Block: a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    absmax_kernel(const __grid_constant__ Planes<T> planes, CacheShape shape, int rows,
                  uint32_t* maxima) {
  allow_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int task = static_cast<int>(threadIdx.x) / kWarp; task < 2 * shape.kv_heads;
       task += kWarps) {
    const T* const x = planes.of[task / shape.kv_heads].x.at(row, task % shape.kv_heads);
    uint32_t absmax = 0;
    for (int e = lane; e < shape.dim; e += kWarp) {
      absmax = max(absmax, finite_magnitude(to_float(x[e])));
    }
    absmax = warp_max(absmax);
    if (lane == 0) maxima[int64_t{task} * rows + row] = absmax;
  }
}

// Turns maxima into running maxima along each sequence, with what the cache holds of it. Block
// (plane and head, sequence): a scan over tiles of as many rows as it has threads.
template <typename T>
__global__ void __launch_bounds__(1024)
    running_max_kernel(const __grid_constant__ Planes<T> planes, CacheShape shape, Pages pages,
                       uint32_t* maxima) {
  __shared__ uint32_t totals[kWarp];
  allow_next();
  const int task = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y);
  const Plane<T>& plane = planes.of[task / shape.kv_heads];
  const Span span = pages.span(sequence);
  wait_for_previous();
  if (!plane.groups() || span.rows == 0) return;
  uint32_t carry = 0;
  if (span.first_position > 0) {
    const int block = pages.block_of(sequence, span.first_position - 1);
    const int head = task % shape.kv_heads;
    if (block >= 0) {
      carry = __float_as_uint(plane.absmax[int64_t{block} * shape.kv_heads + head]);
    }
  }
  uint32_t* const values = maxima + int64_t{task} * pages.rows + span.first_row;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int first = 0; first < span.rows; first += 1024) {
    const int i = first + static_cast<int>(threadIdx.x);
    uint32_t most = i < span.rows ? values[i] : 0;
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, most, apart);
      if (lane >= apart) most = max(most, other);
    }
    if (lane == kWarp - 1) totals[warp] = most;
    __syncthreads();
    const uint32_t total = totals[lane];
    const uint32_t before = warp_max(lane < warp ? total : 0u);
    if (i < span.rows) values[i] = max(carry, max(before, most));
    carry = max(carry, warp_max(total));
    __syncthreads();
  }
}

// Codes and values of all rows. Block: a row; a warp for each plane and head. `running`: the
// running maxima of running_max_kernel, null if no plane has block groups.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    kv_write_kernel(const __grid_constant__ Planes<T> planes, CacheShape shape, Pages pages,
                    const uint32_t* running) {
  allow_next();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int sequence = pages.row_sequence[row];
  Span span{};
  int position = 0, block = -1, before = -1;  // before: the block of the position before the span
  if (sequence >= 0) {
    span = pages.span(sequence);
    position = span.first_position + row - span.first_row;
    block = pages.block_of(sequence, position);
    if (running && span.first_position > 0)
      before = pages.block_of(sequence, span.first_position - 1);
  }
  wait_for_previous();
  if (block < 0) return;
  const int slot = position % pages.block_tokens;
  const int group_start = position - position % shape.group_tokens;
  for (int task = static_cast<int>(threadIdx.x) / kWarp; task < 2 * shape.kv_heads;
       task += kWarps) {
    const int head = task % shape.kv_heads;
    const Plane<T>& plane = planes.of[task / shape.kv_heads];
    const int64_t cell = int64_t{block} * shape.kv_heads + head;
    const int64_t last = int64_t{max(before, 0)} * shape.kv_heads + head;
    float scale = 1.0f;
    if (plane.groups()) {
      const uint32_t* const maxima = running + int64_t{task} * pages.rows;
      if (group_start < span.first_position) {  // the group began in a step before
        scale = plane.scale[last];
      } else if (group_start > 0) {
        const uint32_t absmax =
            group_start == span.first_position
                ? __float_as_uint(plane.absmax[last])
                : maxima[span.first_row + group_start - 1 - span.first_position];
        scale = group_scale(__uint_as_float(absmax), plane.type);
      }
      const bool ends = slot == pages.block_tokens - 1 || row == span.first_row + span.rows - 1;
      if (lane == 0 && ends) plane.absmax[cell] = __uint_as_float(maxima[row]);
    } else if (is_fp8(plane.type)) {
      // A block that a step before began keeps the scale that it began with.
      const bool began = position - slot < span.first_position;
      scale = began ? plane.scale[cell] : plane.fixed[head];
    }
    if (lane == 0 && slot == 0 && is_fp8(plane.type)) plane.scale[cell] = scale;
    const T* const x = plane.x.at(row, head);
    const int64_t slot_index = int64_t{block} * pages.block_tokens + slot;
    uint8_t* const to =
        plane.cache + (slot_index * shape.kv_heads + head) * shape.dim * plane.element;
    with_put(plane.type, inverse_scale(scale), [&](auto put) {
      for (int e = lane; e < shape.dim; e += kWarp) put(to, e, to_float(x[e]));
    });
  }
}

// kv_write, and with a table rope of q and k before it.
void write(const KernelContext& context, const char* op, const Tensor& q, const Tensor& k,
           const Tensor& v, const ops::RopeTable* table, const ops::GqaCache& cache,
           const ops::Batch& batch) {
  if (k.type != v.type || (k.type != DType::f32 && k.type != DType::bf16) ||
      cache.k.shape != cache.v.shape) {
    unsupported(op, "K and V differ, or are not f32 or bf16",
                {{"k", k}, {"v", v}, {"k cache", cache.k}, {"v cache", cache.v}});
  }
  visit_activation_type(k.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t group = cache.group_tokens;
    const Planes<T> planes{{plane_of<T>(op, k, cache.k, cache.k_scale, cache.k_absmax,
                                        cache.fixed_k_scale, group, batch.rows),
                            plane_of<T>(op, v, cache.v, cache.v_scale, cache.v_absmax,
                                        cache.fixed_v_scale, group, batch.rows)}};
    const CacheShape shape{static_cast<int>(cache.k.shape[2]), static_cast<int>(cache.k.shape[3]),
                           static_cast<int>(std::max<int64_t>(group, 1))};
    const Pages pages = pages_of(context, op, batch, cache.k);
    const auto rows = static_cast<unsigned>(batch.rows);
    const auto kv_heads = static_cast<unsigned>(shape.kv_heads);
    const auto sequences = static_cast<unsigned>(batch.sequences.size());
    if (rows == 0 || sequences == 0 || kv_heads == 0) return;
    const int64_t q_heads = table ? q.shape[1] / shape.kv_heads : 0;  // of each KV head
    const bool few = batch.rows <= static_cast<int64_t>(sequences) + kFewRows &&
                     shape.dim <= kWarp * kHeadItems && sequences <= 65535;
    if (few && table && q.type == k.type && q.shape[1] == q_heads * shape.kv_heads) {
      const auto warps = static_cast<unsigned>(std::min<int64_t>(q_heads, kWarps));
      return launch(context, few_rows_kernel<T, true>, dim3(kv_heads, sequences),
                    dim3(kWarp * (2 + warps)), 0, heads_of<T>(q), static_cast<int>(q_heads), planes,
                    shape, angles_of(*table), pages);
    }
    if (table) {
      rope(context, q, *table, batch.positions);
      rope(context, k, *table, batch.positions);
    }
    if (few) {
      return launch(context, few_rows_kernel<T, false>, dim3(kv_heads, sequences), dim3(2 * kWarp),
                    0, Heads<T>{}, 0, planes, shape, Angles{}, pages);
    }
    uint32_t* maxima = nullptr;
    if (planes.of[0].absmax || planes.of[1].absmax) {
      size_t used = 0;
      maxima = context.workspace.take<uint32_t>(used, int64_t{2} * kv_heads * rows);
      launch(context, absmax_kernel<T>, dim3(rows), dim3(kThreads), 0, planes, shape,
             static_cast<int>(rows), maxima);
      launch(context, running_max_kernel<T>, dim3(2 * kv_heads, sequences), dim3(1024), 0, planes,
             shape, pages, maxima);
    }
    launch(context, kv_write_kernel<T>, dim3(rows), dim3(kThreads), 0, planes, shape, pages,
           maxima);
  });
}

}  // namespace

void rope(const KernelContext& context, const Tensor& x, const ops::RopeTable& table,
          const Tensor& positions) {
  check_rope("rope", x, table, positions);
  const int64_t half = x.cols() / 2, tokens = x.shape[0];
  const int64_t heads = x.shape.rank == 3 ? x.shape[1] : 1;
  if (tokens == 0 || heads == 0 || half == 0) return;
  const bool vectors = half % 8 == 0 && half / 8 <= kThreads && rows_aligned(x, 16) &&
                       rows_aligned(table.cos, 16) && rows_aligned(table.sin, 16);
  const auto parts = static_cast<unsigned>(std::min<int64_t>(vectors ? half / 8 : half, 1024));
  const unsigned across = std::max(1u, std::min(kThreads / parts, static_cast<unsigned>(heads)));
  const dim3 grid(static_cast<unsigned>(tokens),
                  (static_cast<unsigned>(heads) + across - 1) / across);
  visit_activation_type(x.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(context, vectors ? rope_kernel<T, 8> : rope_kernel<T, 1>, grid, dim3(parts, across), 0,
           heads_of<T>(x), static_cast<int>(heads), angles_of(table),
           positions.as<const int32_t>());
  });
}

void kv_write(const KernelContext& context, const Tensor& k, const Tensor& v,
              const ops::GqaCache& cache, const ops::Batch& batch) {
  write(context, "kv_write", {}, k, v, nullptr, cache, batch);
}

void rope_kv_write(const KernelContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                   const ops::RopeTable& table, const ops::GqaCache& cache,
                   const ops::Batch& batch) {
  check_rope("rope_kv_write", q, table, batch.positions);
  check_rope("rope_kv_write", k, table, batch.positions);
  if (q.shape.rank != 3 || q.shape[0] != batch.rows) {
    unsupported("rope_kv_write", "q must be [T, heads, dim]", {{"q", q}, {"k", k}});
  }
  write(context, "rope_kv_write", q, k, v, &table, cache, batch);
}

}  // namespace octet::cuda
