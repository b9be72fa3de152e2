// The launches of the kernels of attention_gqa.cuh: how many blocks, of which shape.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backends/cuda/kernels/attention_gqa.cuh"

namespace octet::cuda {

// How the chunk kernel is cut: less where shared memory or registers would not do.
template <typename T, int Dim>
struct ChunkShape {
  static constexpr bool narrow = std::is_same_v<T, float> || Dim > 128;
  static constexpr int warps = narrow ? 2 : 1;
  static constexpr int groups = std::is_same_v<T, float> && Dim > 128 ? 2 : narrow ? 4 : 8;
};

// Whether the split kernel runs in clusters: where single blocks would leave SMs idle.
inline int split_units(const GqaParams& p) {
  return p.kv_heads * p.range * p.packs * p.slots;
}
inline bool splits_in_clusters(const KernelContext& context, const GqaParams& p) {
  return split_units(p) <= context.caps.sms * 2;
}

template <typename T, int Width, int Dim>
void launch_gqa_split_dim(const KernelContext& context, const GqaParams& p) {
  const dim3 grid(static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.range * p.packs),
                  static_cast<unsigned>(p.slots));
  const auto start = [&]<class C>(std::type_identity<C>) {
    static_assert(sizeof(GqaShared<C>) <= 227 * 1024);
    launch(context, gqa_cluster_kernel<C>, dim3(grid.x * C::Cluster, grid.y, grid.z), C::Threads,
           sizeof(GqaShared<C>) - MoreShared<C>::unused(std::min(p.few * p.group, kGroupRows)), p);
  };
  const auto in_clusters = [&]<int Cluster>(std::integral_constant<int, Cluster>) {
    if constexpr (Width > 0) {
      if (p.fresh.here) {
        return start(std::type_identity<GqaConfig<T, Width, Dim, 4, 1, Cluster, 2, true>>{});
      }
    }
    start(std::type_identity<GqaConfig<T, Width, Dim, 4, 1, Cluster, 2>>{});
  };
  // Few units: several blocks each, all of which should find room at once, two on an SM; what a
  // block prepares before its wait is worth most. Else clusters of four until SMs are full.
  if constexpr (!std::is_same_v<T, float>) {
    if (split_units(p) * 8 <= context.caps.sms * 2) {
      return in_clusters(std::integral_constant<int, 8>{});
    }
    if (splits_in_clusters(context, p)) return in_clusters(std::integral_constant<int, 4>{});
  }
  using C = GqaConfig<T, Width, Dim, 4, 1, 1>;
  launch(context, gqa_split_kernel<C>, grid, C::Threads, sizeof(GqaShared<C>), p);
}

template <typename T, int Width, int Dim>
void launch_gqa_chunk_dim(const KernelContext& context, const GqaParams& p) {
  using Shape = ChunkShape<T, Dim>;
  using C = GqaConfig<T, Width, Dim, Shape::warps, Shape::groups, 0>;
  static_assert(sizeof(GqaShared<C>) <= 227 * 1024);
  // The total of the splits lies at the end, and is not needed if there is one.
  const size_t shared = sizeof(GqaShared<C>) - (p.one_split ? sizeof(MoreShared<C>) : 0);
  launch(context, gqa_chunk_kernel<C>, dim3(static_cast<unsigned>(p.kv_heads * chunk_items<C>(p))),
         C::Threads, shared, p);
}

// The two launches for one T and Width; each pair is compiled in a file of its own.
template <typename T, int Width>
void launch_gqa_split(const KernelContext& context, const GqaParams& p) {
  if (p.dim <= 64) return launch_gqa_split_dim<T, Width, 64>(context, p);
  if (p.dim <= 128) return launch_gqa_split_dim<T, Width, 128>(context, p);
  launch_gqa_split_dim<T, Width, 256>(context, p);
}
template <typename T, int Width>
void launch_gqa_chunk(const KernelContext& context, const GqaParams& p) {
  if (p.dim <= 64) return launch_gqa_chunk_dim<T, Width, 64>(context, p);
  if (p.dim <= 128) return launch_gqa_chunk_dim<T, Width, 128>(context, p);
  launch_gqa_chunk_dim<T, Width, 256>(context, p);
}

}  // namespace octet::cuda
