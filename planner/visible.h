// Which KV tiles the rows of a query tile see: the declared mask, turned into tile ranges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "templates/abi.h"

namespace heddle {

// Visited tiles [tile_begin, tile_begin + num_tiles) in the numbering of WorkItem: from gap_begin
// on, gap_tiles are to be added. gap_tiles is 0 unless sink keys and the window lie apart.
struct VisibleTiles {
  std::int32_t tile_begin = 0;
  std::int32_t num_tiles = 0;
  std::int32_t gap_begin = 0;
  std::int32_t gap_tiles = 0;
};

// The union over tokens [token_begin, token_end) of the keys that each of them keeps, in whole
// tiles. That union is exact: token by token the window's interval moves by one key and always
// holds the token's own position, so neighbours touch, and what falls off either end of the
// sequence is the same for all.
inline VisibleTiles visible_tiles(const MaskBounds& mask, std::int32_t qo_len, std::int32_t kv_len,
                                  std::int32_t token_begin, std::int32_t token_end,
                                  std::int32_t tile_kv) {
  // 64 bits: kUnbounded is added to positions, and positions may be negative.
  using Key = std::int64_t;
  const Key first_pos = Key{kv_len} - qo_len + token_begin;
  const Key last_pos = Key{kv_len} - qo_len + token_end - 1;
  const Key last_kept = last_pos + (mask.causal ? 0 : Key{mask.window_right});
  const Key causal_end = mask.causal ? std::max<Key>(last_pos + 1, 0) : Key{kv_len};
  const Key window_begin = std::max<Key>(first_pos - mask.window_left, 0);
  const Key window_end = std::clamp<Key>(last_kept + 1, 0, kv_len);
  const Key sink_end = std::min({Key{mask.sink}, causal_end, Key{kv_len}});

  const auto tiles_to = [tile_kv](Key key_end) {
    return static_cast<std::int32_t>(
        (static_cast<std::uint32_t>(key_end) + static_cast<std::uint32_t>(tile_kv) - 1) /
        static_cast<std::uint32_t>(tile_kv));
  };
  const std::int32_t sink_tiles = tiles_to(sink_end);
  if (window_begin >= window_end) return {0, sink_tiles, 0, 0};
  const auto window_first = static_cast<std::int32_t>(window_begin / tile_kv);
  const std::int32_t window_last = tiles_to(window_end);
  if (sink_tiles == 0) return {window_first, window_last - window_first, 0, 0};
  if (sink_tiles >= window_first) return {0, std::max(sink_tiles, window_last), 0, 0};
  return {0, sink_tiles + window_last - window_first, sink_tiles, window_first - sink_tiles};
}

}  // namespace heddle
