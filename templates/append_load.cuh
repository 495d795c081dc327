// Shared memory of append on mma.sync, and how K and V come into it: rows are looked up, each by one thread, and their
// addresses published to all; then all threads copy them, 16 bytes at a time.
#pragma once

#include "templates/smem_tile.cuh"
#include "templates/work.cuh"

namespace heddle {

// A bit that no address has, of a row that is not copied. The rest of that address is one, though nobody reads there.
inline constexpr uint64_t kNotCopied = uint64_t(1) << 63;

template <class Spec>
struct AppendSmem {
  using QkTile = SmemTile<Spec::kHeadDim>;
  using VTile = SmemTile<Spec::kHeadDimVo>;
  alignas(128) uint8_t q[Spec::kTile.rows * QkTile::kRowBytes];
  struct Stage {
    alignas(128) uint8_t k[Spec::kTile.kv * QkTile::kRowBytes];
    alignas(128) uint8_t v[Spec::kTile.kv * VTile::kRowBytes];
  };
  Stage stage[2];
  uint64_t row_address[2][2][Spec::kTile.kv];  // of K, of V; with kNotCopied where no row of the tile sees the key
  int row_id[2 * Spec::kTile.kv];  // page ids of a later tile, each read by the thread that asked
  // What is being worked on. It is uniform and rarely read, so it stays out of the registers.
  MaskBounds mask;
  WorkItem item;
  KeyRange all_see, some_see;
  int kv_head, items_left;
  int key_row;  // transformed_key_row(), where units ask for it

  HEDDLE_DEVICE bool finds_keys_transformed() const { return Spec::kTransformedKeys && key_row != kNoKeyRow; }
};

// Built where it is needed, from what the kernel has.
template <class Spec>
class AppendLoad {
  using Smem = AppendSmem<Spec>;
  using QkTile = typename Smem::QkTile;
  using VTile = typename Smem::VTile;
  using Address = KvAddress<Spec::kPageSize>;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kThreads = Spec::kTile.warps * kWarpSize;

 public:
  HEDDLE_DEVICE AppendLoad(const AttentionParams& params, Smem& smem) : p_(params), smem_(smem) {}

  // Page ids of this thread's rows of tile t. Keys that no row of the query tile sees are not read at all.
  HEDDLE_DEVICE void fetch_row_ids(int t) const {
    if (Spec::kPageSize == 0 || t >= smem_.item.tile_end) return;
#pragma unroll
    for (int n = 0; n < kLookups; ++n) fetch_row_id(t, threadIdx.x + n * kThreads);
  }
  HEDDLE_DEVICE void publish_row_addresses(int t) const {
    if (t >= smem_.item.tile_end) return;
#pragma unroll
    for (int n = 0; n < kLookups; ++n) publish_row_address(t, threadIdx.x + n * kThreads);
  }
  // Starts the copy of tile t, whose row addresses must be visible.
  HEDDLE_DEVICE void load_tile(int t) const {
    if (t >= smem_.item.tile_end) return;
    auto& stage = smem_.stage[t & 1];
    copy_rows<QkTile>(shared_address(stage.k), smem_.row_address[t & 1][0]);
    copy_rows<VTile>(shared_address(stage.v), smem_.row_address[t & 1][1]);
  }

 private:
  // Row i of a tile's lookups is K's row i or V's row i - kv; thread t has those that are t modulo the threads.
  static constexpr int kLookups = (2 * kTileKv + kThreads - 1) / kThreads;
  static HEDDLE_DEVICE bool is_lookup(int i) { return i < 2 * kTileKv; }
  HEDDLE_DEVICE int looked_up_key(int t, int i) const { return tile_start<kTileKv>(smem_.item, t) + i % kTileKv; }

  HEDDLE_DEVICE void fetch_row_id(int t, int i) const {
    if (!is_lookup(i)) return;
    const int kv_pos = looked_up_key(t, i);
    if (smem_.some_see.contains(kv_pos))
      cp_async_4(shared_address(&smem_.row_id[i]),
                 p_.kv_indices + smem_.item.kv_offset + kv_pos / max_of(Spec::kPageSize, 1));
  }

  HEDDLE_DEVICE void publish_row_address(int t, int i) const {
    if (!is_lookup(i)) return;
    const int kv_pos = looked_up_key(t, i), row_id = Spec::kPageSize == 0 ? 0 : smem_.row_id[i];
    uint64_t address;
    if (i < kTileKv && smem_.finds_keys_transformed())
      address = reinterpret_cast<uint64_t>(p_.transformed_keys) +
                transformed_key_offset<Spec::kHeadDim>(p_, smem_.key_row + kv_pos, smem_.kv_head) * 2;
    else if (i < kTileKv)
      address = reinterpret_cast<uint64_t>(p_.k) +
                (Address::k_offset(p_, smem_.item.kv_offset, row_id, kv_pos) + smem_.kv_head * p_.k_head_stride) * 2;
    else
      address = reinterpret_cast<uint64_t>(p_.v) +
                (Address::v_offset(p_, smem_.item.kv_offset, row_id, kv_pos) + smem_.kv_head * p_.v_head_stride) * 2;
    if (!smem_.some_see.contains(kv_pos)) address = reinterpret_cast<uint64_t>(p_.k) | kNotCopied;
    smem_.row_address[t & 1][i >= kTileKv][i % kTileKv] = address;
  }

  // Addresses first, all of them: one after the other each copy would wait for its own.
  template <class Tile>
  HEDDLE_DEVICE void copy_rows(uint32_t tile, const uint64_t (&addresses)[kTileKv]) const {
    constexpr int kRowStep = kThreads / Tile::kChunks;
    // Where a thread's rows are a multiple of 8 apart they share one chunk and one swizzle.
    if constexpr (kThreads % Tile::kChunks == 0 && kRowStep % 8 == 0 && kTileKv % kRowStep == 0) {
      const int row = threadIdx.x / Tile::kChunks, chunk = threadIdx.x % Tile::kChunks;
      const uint32_t to = tile + Tile::chunk_offset(row, chunk);
      constexpr int kRows = kTileKv / kRowStep;
      uint64_t from[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) from[i] = addresses[row + i * kRowStep];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        copy_chunk<Tile>(to + i * kRowStep * Tile::kRowBytes, chunk, from[i]);
    } else {
#pragma unroll
      for (int i = 0; i < (kTileKv * Tile::kChunks + kThreads - 1) / kThreads; ++i) {
        const int index = i * kThreads + threadIdx.x;
        const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
        if (kTileKv * Tile::kChunks % kThreads != 0 && row >= kTileKv) continue;
        copy_chunk<Tile>(tile + Tile::chunk_offset(row, chunk), chunk, addresses[row]);
      }
    }
  }

  // What is not copied becomes zeros.
  template <class Tile>
  static HEDDLE_DEVICE void copy_chunk(uint32_t to, int chunk, uint64_t row) {
    cp_async_16(to, reinterpret_cast<const void*>((row & ~kNotCopied) + chunk * kChunkBytes),
                static_cast<int>(row >> 32) >= 0 && Tile::has_chunk(chunk));
  }

  const AttentionParams& p_;
  Smem& smem_;
};

}  // namespace heddle
