// Where the rows of a step lie in the paged cache, and storing values in the cache's types.
//
// What a batch holds (spans, ids of blocks and sequences, positions) is copied to the device before
// a step and never written by a kernel, so it may be read before wait_for_previous(), like weights.
#pragma once

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace octet::cuda::paged {

struct Span {
  int first_row, rows, first_position;
};

// Where rows belong and where positions lie: ops::Batch and the shape of the cache.
struct Pages {
  const int32_t* spans;         // [sequences, 3]
  const int32_t* row_sequence;  // [rows]
  const int32_t* table;         // [sequences, entries], rows `table_stride` apart
  int64_t table_stride;
  int entries, blocks, block_tokens, rows;
  DeviceFault* fault;

  __device__ Span span(int sequence) const {
    return {spans[3 * sequence], spans[3 * sequence + 1], spans[3 * sequence + 2]};
  }
  // The block of a position; -1 and a fault if there is none.
  __device__ int block_of(int sequence, int position) const {
    const int entry = position / block_tokens;
    const int block = entry < entries ? table[sequence * table_stride + entry] : -1;
    if (block >= 0 && block < blocks) return block;
    *fault = {FaultKind::position_without_block, position};
    return -1;
  }
};

inline Pages pages_of(const KernelContext& context, const char* op, const ops::Batch& batch,
                      const Tensor& cache) {
  for (const Tensor* t : {&batch.spans, &batch.row_sequence, &batch.block_table}) {
    const bool inner = t->shape.rank < 1 || t->shape[t->shape.rank - 1] == 1 ||
                       t->strides[static_cast<size_t>(t->shape.rank - 1)] == 1;
    if (!*t || t->type != DType::i32 || !inner) {
      unsupported(op, "the batch is not on the device",
                  {{"spans", batch.spans},
                   {"row_sequence", batch.row_sequence},
                   {"block_table", batch.block_table}});
    }
  }
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  if (batch.spans.count() != 3 * sequences || batch.row_sequence.count() != batch.rows ||
      batch.block_table.rows() < sequences || !batch.spans.contiguous()) {
    unsupported(op, "the parts of the batch do not fit",
                {{"spans", batch.spans},
                 {"row_sequence", batch.row_sequence},
                 {"block_table", batch.block_table}});
  }
  return {batch.spans.as<const int32_t>(),
          batch.row_sequence.as<const int32_t>(),
          batch.block_table.as<const int32_t>(),
          batch.block_table.row_stride(),
          static_cast<int>(batch.block_table.cols()),
          static_cast<int>(cache.shape[0]),
          static_cast<int>(cache.shape[1]),
          static_cast<int>(batch.rows),
          context.fault};
}

// A tensor [T, heads, dim] (or [T, dim]) by token and head.
template <typename T>
struct Heads {
  T* data;
  int64_t token_stride, head_stride;
  __device__ __forceinline__ T* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};
template <typename T>
Heads<T> heads_of(const Tensor& x) {
  return {x.as<T>(), x.strides[0], x.shape.rank == 3 ? x.strides[1] : 0};
}

// Calls use(put) where put(to, i, x) stores x as element i of an array of `type`; FP8 codes are of
// x * inv. The type is chosen once, outside of what `use` loops over.
template <DType D>
struct Put {
  float inv;
  __device__ __forceinline__ void operator()(uint8_t* to, int i, float x) const {
    if constexpr (D == DType::e4m3) {
      to[i] = encode_e4m3(x * inv);
    } else if constexpr (D == DType::e5m2) {
      to[i] = encode_e5m2(x * inv);
    } else if constexpr (D == DType::bf16) {
      reinterpret_cast<__nv_bfloat16*>(to)[i] = from_float<__nv_bfloat16>(x);
    } else if constexpr (D == DType::f16) {
      reinterpret_cast<__half*>(to)[i] = from_float<__half>(x);
    } else {
      reinterpret_cast<float*>(to)[i] = x;
    }
  }
};
template <typename Use>
__device__ __forceinline__ void with_put(DType type, float inv, Use use) {
  switch (type) {
    case DType::e4m3:
      return use(Put<DType::e4m3>{inv});
    case DType::e5m2:
      return use(Put<DType::e5m2>{inv});
    case DType::bf16:
      return use(Put<DType::bf16>{});
    case DType::f16:
      return use(Put<DType::f16>{});
    default:
      return use(Put<DType::f32>{});
  }
}

}  // namespace octet::cuda::paged
