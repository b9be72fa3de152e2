// attend_tile by AMX, for queries, keys, values and P that BF16 holds exactly (TileShape::amx).
#pragma once

#include "backends/cpu/kernels/fast_attention_core.h"

namespace octet::cpu::attention {

// Does what attend_tile does, for rows with q16. Every product is a chain over ascending pairs of
// dims or tokens, as tdpbf16ps adds them, whatever the number of rows.
void attend_tile_amx(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                     const Rows& rows, int begin, int end);

// A thread's tiles stay set up for a whole task, as to set them up waits for all that is under way:
// to be called before its first load_tile, and after its last attend_tile.
void prepare_tiles(const Rows& rows);
void release_tiles(const Rows& rows);

// simd::keep_awake, between the two.
void keep_tiles_awake();

}  // namespace octet::cpu::attention
