// Rows that the producer of append_sm90 gathers: how its lanes lie on a tile, and the copy of a tile's rows from wherever
// they are, 16 bytes a lane.
#pragma once

#include "templates/append_sm90_streams.cuh"

namespace heddle {

// For tiles whose blocks of columns have rows of kLanes_ chunks: kLanes lanes of a warp a row of a block, kStep rows at
// once; the four warps take turns, so that a thread's rows are kStride apart and share one swizzle.
template <int kLanes_>
struct GatheredRows {
  static constexpr int kLanes = kLanes_;
  static constexpr int kStep = kWarpSize / kLanes;
  static constexpr int kStride = kWarpgroupWarps * kStep;

  // The row that this lane looks up, of the `pass`-th kWarpSize rows that its warp copies.
  static HEDDLE_DEVICE int looked_up(int pass) {
    const int lane = producer_thread() % kWarpSize, warp = producer_thread() / kWarpSize;
    return (pass * kLanes + lane / kStep) * kStride + warp * kStep + lane % kStep;
  }
  // The lane of a warp that has looked up row `row`, the first of one of the warp's turns, in the first pass.
  static HEDDLE_DEVICE constexpr int lane_of(int row) { return row / kStride * kStep; }

  // `offset_of(row)`: where the row lies, in elements, or, where not all are seen, kNotSeen.
  template <class Tile, bool kAllSeen, class OffsetOf>
  static HEDDLE_DEVICE void copy(uint32_t tile, const uint16_t* base, const OffsetOf& offset_of) {
    constexpr int kTurns = Tile::kRows / kStride;
    const int lane = producer_thread() % kWarpSize, warp = producer_thread() / kWarpSize;
    const int row = lane / kLanes, chunk = lane % kLanes;
    const uint32_t to = tile + Tile::chunk_offset(warp * kStep + row, 0, chunk);
    base += chunk * kChunkElements;
    int64_t place = 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn % kLanes == 0) place = offset_of(looked_up(turn / kLanes));
      const int64_t offset = __shfl_sync(kFullMask, place, turn % kLanes * kStep + row);
      const bool seen = kAllSeen || static_cast<int>(offset >> 32) != static_cast<int>(kNotSeen >> 32);
      const uint16_t* from = base + (seen ? offset : 0);
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block)
        cp_async_16(to + turn * kStride * Tile::kRowBytes + block * Tile::kBlockBytes, from + block * Tile::kBlockColumns,
                    seen && Tile::has_chunk(block, chunk));
    }
  }
};

}  // namespace heddle
