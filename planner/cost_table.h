// What work costs on each pipeline: the one place for these constants.
#pragma once

#include "planner/plan.h"
#include "templates/abi.h"

namespace heddle {

// Nanoseconds of one CTA beside its fellows on a full device. The tiles' cost is read off whole runs on
// an H200 (2026-11-29): the decode CTAs of an SM move about 34 bytes/ns. What decode's items and a partial state cost is
// an estimate from the memory round trips in them, not measured alone; nothing hides those of a CTA that has its SM to
// itself (2026-11-30: zipf 385 us by these prices, 387 by those of two, 403 with 17 bytes/ns). Only ratios matter to the
// balance, so one table serves all GPUs.
inline CostModel cost_model(Pipeline pipeline, const TileConfig& tile, int head_dim) {
  const int tile_rows = tile.rows, tile_kv = tile.kv;
  const bool wgmma = tile.q_buffers > 0;
  if (pipeline == Pipeline::decode) {
    const double per_tile = tile_kv * tile.heads_abreast * head_dim * 4 * tile.ctas_per_sm / 34.0;
    if (tile.ctas_per_sm == 1) return {.per_item = 1500, .per_tile = per_tile, .per_partial = 1200};
    return {.per_item = 1000, .per_tile = per_tile, .per_partial = 600};
  }
  const double tile_flops = 4.0 * tile_rows * tile_kv * head_dim;
  // One consumer warpgroup: bytes are the limit, as in decode, one CTA an SM. (2026-11-30: 64 requests of group 32 over
  // 4k 270 us, 8 tokens of 8 requests over 16k 143; 275 and 147 with 1000 ns a partial state; other rows within 1.5 %.)
  if (wgmma && tile_rows == 64) return {.per_item = 1500, .per_tile = tile_kv * head_dim * 4 / 34.0, .per_partial = 3000};
  // An item's cost is mostly that of its masked first tile and of writing its rows. (At head_dim 128, for 128
  // rows: 1500 is 5 to 10 % slower on short prompts, 4500 on chunks; runs differ by as much as 5 %.)
  if (wgmma)
    return {.per_item = 3000.0 * tile_rows * head_dim / (128 * 128), .per_tile = tile_flops / 5000.0, .per_partial = 2000};
  // mma.sync (2026-11-30, H200): 16k, 4 x 4k and 16 x 1k tokens take as many items as each other, of 128, 33 and 9 tiles
  // of 128 x 64; the times that SMs were busy with them are those of 2.9 us a tile and 14 us an item within 3 %.
  return {.per_item = 14000.0 * tile_rows * head_dim / (128 * 128), .per_tile = tile_flops / 1430.0, .per_partial = 2000};
}

// A shared prefix: a kernel more in front of decode, states through memory, short tails on both. An
// estimate, not measured.
inline constexpr double kSharingCost = 6000;

}  // namespace heddle
