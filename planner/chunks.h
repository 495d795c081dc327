// Where a batch-invariant plan cuts streams: a rule of the request alone.
//
// A stream of T visited KV tiles becomes min(ceil(T / L), M) chunks of equal length (to a tile). L
// and M follow from the config, and from the number Q of query tiles that the request has: each of
// them is another stream of the same keys, so the request spreads over CTAs without cuts, and L
// grows as Q and M falls as 1 / Q. That also bounds the partial states by the keys of the batch,
// and by its requests, whatever the lengths are.
//
//   decode  L = 22 tiles of 64 keys of head_dim 128 (0.7 MB of K and V, of all heads that are read abreast), M = 64
//   append  L = 4096 Q keys, M = 8 / Q
//
// A chunk of decode costs what 0.83 tiles do on top (cost_table.h), so cuts cost 4 % of long
// requests and up to 7 % of those just above L. An L of 16 would miss 0.95 of the default's speed on
// 64x4096 and 16x8192 (264 CTAs, 8 kv heads), one of 8 gives 0.90 to 0.92 on all even batches. What
// it costs is a batch of one short request: 1024 keys stay uncut, on one CTA a head. M = 64 lets
// one request of 128k keys reach all CTAs. A slot of append is 64 KB, so only few query tiles over
// many keys are cut there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/streams.h"

namespace heddle {

// The chunks of one stream: `longer` of them have a tile more than the others, and come first.
struct Chunks {
  std::int32_t count = 1;
  std::int32_t tiles = 0;
  std::int32_t longer = 0;

  std::int32_t begin(std::int32_t chunk) const { return chunk * tiles + std::min(chunk, longer); }
  std::int32_t tiles_of(std::int32_t chunk) const { return tiles + (chunk < longer ? 1 : 0); }
};

class ChunkRule {
 public:
  ChunkRule(const PlanConfig& config, Pipeline pipeline)
      : group_(config.group),
        tile_rows_(config.of(pipeline).tile_rows),
        min_tiles_(least_tiles(config, pipeline)),
        max_chunks_(pipeline == Pipeline::decode ? 64 : 8) {}

  Chunks of(const StreamRun& run) const {
    const std::int32_t tiles = run.num_tiles();
    if (tiles <= min_tiles_) return {1, tiles, 0};
    const std::int64_t query_tiles =
        (std::int64_t{run.item.qo_len} * group_ + tile_rows_ - 1) / tile_rows_;
    const std::int64_t length = min_tiles_ * query_tiles;
    const auto count = static_cast<std::int32_t>(std::min(
        (tiles + length - 1) / length, std::max<std::int64_t>(1, max_chunks_ / query_tiles)));
    return {count, tiles / count, tiles % count};
  }

  // Most slots that one kv head's streams of all requests can need. A request with Q query tiles
  // needs Q * (chunks - 1), which is at most (tiles - 1) / L and below M.
  std::int64_t most_slots(std::int64_t requests, std::int64_t kv_tokens,
                          std::int32_t tile_kv) const {
    return std::min(kv_tokens / (std::int64_t{tile_kv} * min_tiles_), requests * (max_chunks_ - 1));
  }

 private:
  static std::int32_t least_tiles(const PlanConfig& config, Pipeline pipeline) {
    constexpr std::int32_t kDecodeElements = 2 * 22 * 64 * 128;  // of K and V
    constexpr std::int32_t kAppendKeys = 4096;
    const std::int32_t keys =
        pipeline == Pipeline::decode
            ? kDecodeElements / ((config.head_dim + config.vo_dim()) * config.of(pipeline).heads_abreast)
            : kAppendKeys;
    return std::max(1, keys / config.of(pipeline).tile_kv);
  }

  std::int32_t group_, tile_rows_;
  std::int32_t min_tiles_;   // L of a request with one query tile
  std::int32_t max_chunks_;  // M of one
};

}  // namespace heddle
