// The keys of a KV tile that one warp of decode owns, on their way from their pages to its stage.
#pragma once

#include "templates/decode_team.cuh"
#include "templates/work.cuh"

namespace heddle {

template <class Spec>
inline constexpr int kWarpKeysOf = Spec::kTile.kv / Team<Spec>::kWarps;

template <class Spec>
class WarpKeys {
  static constexpr int kPageSize = Spec::kPageSize;
  static constexpr int kWarpKeys = kWarpKeysOf<Spec>;

 public:
  // They lie in runs of so many rows, each within one page: one address for all of them.
  static constexpr int kRun = kPageSize % kWarpKeys == 0 ? kWarpKeys : kPageSize % 16 == 0 ? 16 : 1;
  static constexpr bool kOneRun = kRun == kWarpKeys;

  // Whether rows share lines of L2 only with those of heads that the CTA reads beside them. (H200, 2026-12-01, us without and
  // with: 96 columns 205 and 192.5, 32 139.5 and 131. Where others share them it is a loss: 48 columns 110 and 115, 112 257
  // and 303; where nobody does, 64 and 128 to 256 columns, the same within 0.5 %.)
  template <class Tile>
  static constexpr bool kSharesLines = Tile::kHeadDim * 2 % 128 != 0 && Tile::kHeadDim * 2 * Team<Spec>::kTeams % 128 == 0;

  // First of the run of keys that this lane looks up, counted from the warp's first.
  static HEDDLE_DEVICE int looked_up_run() { return kOneRun ? 0 : lane_index() % kWarpKeys / kRun * kRun; }

  // The warp's rows; lane r has the offset of the first row of row r's run. Rows whose
  // bit is not set, which nobody sees, are not read; zeros stand for them.
  template <class Tile>
  static HEDDLE_DEVICE void copy_rows(const uint8_t* stage, const uint16_t* base, int64_t offset, int64_t stride,
                                      uint32_t visible) {
    const uint32_t to = shared_address(stage);
    // After kPeriod copies a lane is back in its column, kStep rows further down.
    constexpr int kPeriod = Tile::kChunks / common_divisor(Tile::kChunks, kWarpSize);
    constexpr int kStep = kWarpSize * kPeriod / Tile::kChunks;
    if constexpr (kRun % kStep == 0) {
#pragma unroll
      for (int run = 0; run < kWarpKeys; run += kRun) {
        const uint16_t* const rows = base + (kOneRun ? offset : __shfl_sync(kFullMask, offset, run));
#pragma unroll
        for (int i = 0; i < kPeriod; ++i)
          copy_column<Tile, kStep, kSharesLines<Tile>>(to, rows, run, i * kWarpSize + lane_index(), stride, visible);
      }
    } else {
#pragma unroll 4
      for (int i = lane_index(); i < kWarpKeys * Tile::kChunks; i += kWarpSize) {
        const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
        const int64_t row_offset = kOneRun ? offset + row * stride : __shfl_sync(kFullMask, offset, row);
        cp_async_16<kSharesLines<Tile>>(to + Tile::chunk_offset(row, chunk), base + row_offset + chunk * kChunkElements,
                    (visible >> row & 1) && Tile::has_chunk(chunk));
      }
    }
  }

 private:
  // Every kStep-th row of a run from chunk `index` on, in one column: one address and its increments.
  template <class Tile, int kStep, bool kWholeLine>
  static HEDDLE_DEVICE void copy_column(uint32_t to, const uint16_t* rows, int run, int index, int64_t stride,
                                        uint32_t visible) {
    const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
    const uint16_t* from = rows + row * stride + chunk * kChunkElements;
    visible = Tile::has_chunk(chunk) ? visible >> (run + row) : 0;
    to += Tile::chunk_offset(row, chunk);
#pragma unroll
    for (int i = 0; i < kRun; i += kStep) {
      // row is below kStep and run + i a multiple of it, so their bits permute apart.
      const uint32_t key = Tile::swizzle(run + i, 0) * kChunkBytes;
      cp_async_16<kWholeLine>((to ^ key) + (run + i) * Tile::kRowBytes, from, visible >> i & 1);
      from += kStep * stride;
    }
  }
};

}  // namespace heddle
