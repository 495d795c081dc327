// Which KV tiles the rows of a query tile see: the declared mask, turned into tile ranges.
#pragma once

#include <algorithm>
#include <bit>
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

// How keys are counted in KV tiles; tiles are a power of two nearly always, and then a shift does
// it.
class KvTiles {
 public:
  explicit KvTiles(std::int32_t tile_kv)
      : keys_(static_cast<std::uint32_t>(tile_kv)),
        shift_(std::has_single_bit(keys_) ? std::countr_zero(keys_) : -1) {}

  std::int32_t holding(std::int64_t key) const { return quotient(static_cast<std::uint32_t>(key)); }
  std::int32_t up_to(std::int64_t key_end) const {
    return quotient(static_cast<std::uint32_t>(key_end) + keys_ - 1);
  }

 private:
  std::int32_t quotient(std::uint32_t key) const {
    return static_cast<std::int32_t>(shift_ >= 0 ? key >> shift_ : key / keys_);
  }
  std::uint32_t keys_;
  int shift_;
};

// The declared mask of a batch, over tiles of one size.
class VisibleKeys {
 public:
  VisibleKeys(const MaskBounds& mask, std::int32_t tile_kv)
      : mask_(mask),
        tiles_(tile_kv),
        has_window_(mask.window_left != kUnbounded ||
                    (!mask.causal && mask.window_right != kUnbounded)) {}

  // What tokens [token_begin, token_end) of a request see.
  VisibleTiles of(std::int32_t qo_len, std::int32_t kv_len, std::int32_t token_begin,
                  std::int32_t token_end) const {
    if (has_window_) return in_window(qo_len, kv_len, token_begin, token_end);
    // Sink keys are among the first ones, which all rows see that see any.
    const std::int64_t last_pos = std::int64_t{kv_len} - qo_len + token_end - 1;
    const std::int64_t end =
        mask_.causal ? std::clamp<std::int64_t>(last_pos + 1, 0, kv_len) : kv_len;
    return {0, tiles_.up_to(end), 0, 0};
  }

  // The tiles that hold keys [begin, end).
  VisibleTiles of_keys(std::int32_t begin, std::int32_t end) const {
    if (begin >= end) return {};
    const std::int32_t first = tiles_.holding(begin);
    return {first, tiles_.up_to(end) - first, 0, 0};
  }

 private:
  // The union over the tokens of the keys that each of them keeps, in whole tiles. That union is
  // exact: token by token the window's interval moves by one key and always holds the token's own
  // position, so neighbours touch, and what falls off either end of the sequence is the same for
  // all.
  VisibleTiles in_window(std::int32_t qo_len, std::int32_t kv_len, std::int32_t token_begin,
                         std::int32_t token_end) const {
    // 64 bits: kUnbounded is added to positions, and positions may be negative.
    using Key = std::int64_t;
    const Key first_pos = Key{kv_len} - qo_len + token_begin;
    const Key last_pos = Key{kv_len} - qo_len + token_end - 1;
    const Key last_kept = last_pos + (mask_.causal ? 0 : Key{mask_.window_right});
    const Key causal_end = mask_.causal ? std::max<Key>(last_pos + 1, 0) : Key{kv_len};
    const Key window_begin = std::max<Key>(first_pos - mask_.window_left, 0);
    const Key window_end = std::clamp<Key>(last_kept + 1, 0, kv_len);
    const Key sink_end = std::min({Key{mask_.sink}, causal_end, Key{kv_len}});

    const std::int32_t sink_tiles = tiles_.up_to(sink_end);
    if (window_begin >= window_end) return {0, sink_tiles, 0, 0};
    const std::int32_t window_first = tiles_.holding(window_begin);
    const std::int32_t window_last = tiles_.up_to(window_end);
    if (sink_tiles == 0) return {window_first, window_last - window_first, 0, 0};
    if (sink_tiles >= window_first) return {0, std::max(sink_tiles, window_last), 0, 0};
    return {0, sink_tiles + window_last - window_first, sink_tiles, window_first - sink_tiles};
  }

  MaskBounds mask_;
  KvTiles tiles_;
  bool has_window_;
};

}  // namespace heddle
