// AMX building blocks. Only functions marked OCTET_AMX may use them, on a processor where the
// system lets this process use tiles (CpuCaps::amx_bf16).
#pragma once

#if defined(__x86_64__)

#include "backends/cpu/kernels/simd_avx512.h"

namespace octet::cpu::simd {

// What is written at `memory` before this is there for tiles that are loaded after it, and what
// tiles stored there before it for reads after it: g++ does not know that its intrinsics touch
// memory.
inline void tile_barrier(const void* memory) {
  asm volatile("" ::"r"(memory) : "memory");
}

// A product whose result nobody wants. The unit that multiplies tiles falls asleep some 550 ticks
// of the time stamp counter after its last product (Emerald Rapids; loads and stores of tiles do
// not count), and the next one takes as many ticks longer. So what lies between products, where it
// is long, calls this now and then. Adds to tile 0 the product of 3 and 2, all of which must be set
// up.
OCTET_AMX_INLINE void keep_awake() {
  _tile_dpbf16ps(0, 3, 2);
}

// The shapes of the eight tiles: the operand of ldtilecfg. A tile of no rows must not be used.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // Rows of `columns` times 4 bytes, at most 16 by 16; none if there are no columns.
  constexpr void set(int tile, int64_t height, int64_t columns) {
    row_bytes[tile] = static_cast<uint16_t>(4 * columns);
    rows[tile] = static_cast<uint8_t>(columns > 0 ? height : 0);
  }
  // Of the calling thread, until it calls _tile_release.
  OCTET_AMX_INLINE void load() const {
    tile_barrier(this);
    _tile_loadconfig(this);
  }
};

}  // namespace octet::cpu::simd

#endif
