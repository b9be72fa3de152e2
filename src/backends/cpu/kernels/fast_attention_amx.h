// attend_tile by AMX, for queries, keys, values and P that BF16 holds exactly (TileShape::amx).
#pragma once

#include "backends/cpu/kernels/fast_attention_core.h"

namespace octet::cpu::attention {

// Does what attend_tile does, for rows with q16. Every product is a chain over ascending pairs of
// dims or tokens, as tdpbf16ps adds them, whatever the number of rows.
void attend_tile_amx(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                     const Rows& rows, int begin, int end);

}  // namespace octet::cpu::attention
