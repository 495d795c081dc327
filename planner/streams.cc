#include "planner/streams.h"

#include <algorithm>

#include "planner/visible.h"

namespace heddle {

void StreamList::add(const MaskBounds& mask, std::int32_t r, std::int32_t qo_len,
                     std::int32_t kv_len) {
  const std::int32_t rows = qo_len * config_.group;
  const std::int32_t tiles = rows <= shape_.tile_rows ? 1 : (rows - 1) / shape_.tile_rows + 1;
  for (std::int32_t t = tiles - 1; t >= 0; --t) {
    const std::int32_t row_begin = t * shape_.tile_rows;
    const std::int32_t row_end = std::min(row_begin + shape_.tile_rows, rows);
    // Without this branch, two divisions for each of 10,000 decode requests.
    const bool whole = tiles == 1;
    const std::int32_t token_begin = whole ? 0 : row_begin / config_.group;
    const std::int32_t token_end = whole ? qo_len : (row_end - 1) / config_.group + 1;
    const VisibleTiles visible =
        visible_tiles(mask, qo_len, kv_len, token_begin, token_end, shape_.tile_kv);
    room_[size_++] = {r,
                      row_begin,
                      row_end - row_begin,
                      visible.tile_begin,
                      visible.num_tiles,
                      visible.gap_begin,
                      visible.gap_tiles};
  }
}

}  // namespace heddle
