// The producer of append_sm90: one warpgroup that walks the CTA's work ahead of the consumers. For each
// stream (work item, kv head) it writes a record, copies the query rows, then K and V tiles in
// the order of their use, each tile into the next stage of one ring, the last tile of keys first:
//
//   K(n) | K(n-1) V(n) | K(n-2) V(n-1) | ... | V(0)
//
// Queries, and tiles that are seen as a whole where rows are ragged or pages large enough, come through the
// copy engine, few boxes by the first warp, many by all four. All others are 16-byte gathers by every thread, which take
// pages of any size: a lane looks up the rows that its warp copies, one each, with page ids read one tile
// ahead. Rows that nobody sees become zeros without a read. Nobody here waits for a copy to land:
// barriers do (`arrive`, `arrive_after_copies`), and consumers fence what they then read. Only hooks
// on q, k and v wait, which change a tile in place before it is passed on. Keys that another kernel has transformed
// (transformed_keys.cuh) need none of that.
#pragma once

#include "templates/append_sm90_rows.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90Loader {
  using Smem = AppendSm90Smem<Spec>;
  using QTile = typename Smem::QTile;
  using KTile = typename Smem::KTile;
  using VTile = typename Smem::VTile;
  using Address = KvAddress<Spec::kPageSize>;
  using Tiles = StreamTiles<Spec>;
  using Rows = GatheredRows<KTile::kBlockChunks>;  // of Q and V as well
  static constexpr int kBoxRows = Spec::kBoxRows;
  static constexpr int kBoxBytes = kBoxRows * KTile::kRowBytes;
  static constexpr bool kBoxesOfQ = Spec::kQBoxTokens > 0 && !Hooks::has_query_transform;
  // Few boxes are the first warp's alone. The others go past such tiles without a look, so that consumers have the SM's
  // issue slots, and wait where the first one must have been before them (`stay_together`).
  static constexpr bool kFirstWarpLoads = kBoxRows > 0 && Spec::kTile.kv <= 2 * kBoxRows;
  static_assert(kBoxRows % Rows::kStride == 0, "every warp looks up a row of each box");
  static_assert(Spec::kTile.rows % Rows::kStride == 0 && Spec::kTile.kv % Rows::kStride == 0, "a warp copies whole steps");
  static_assert(Spec::kTile.kv <= kWarpgroupSize, "one lane looks up one row");

 public:
  HEDDLE_DEVICE AppendSm90Loader(const AttentionParams& params, const Hooks& hooks, const TensorMaps& maps, Smem& smem)
      : p_(params),
        hooks_(hooks),
        maps_(maps),
        smem_(smem),
        streams_(params, smem),
        warp_(uniform(producer_thread() / kWarpSize)) {}

  HEDDLE_DEVICE void run() {
    while (streams_.begin()) {
      load_q();
      load_tiles();
      streams_.end();
    }
    arrive(&smem_.q_full[streams_.q_stage()]);  // for the rows that the end does not have
    wait_for_copies();                          // none outlives its thread
  }

 private:
  // Last tile first.
  HEDDLE_DEVICE void load_tiles() {
    tiles_ = Tiles(record());
    const int begin = tiles_.range.begin, last = tiles_.range.end - 1;
    fetch_row_id(last);
    // Once more than there are tiles, for the first one's values.
    for (int t = last; t >= begin - 1; --t) {
      value_id_ = key_id_;
      key_id_ = next_id_;
      fetch_row_id(t - 1);
      const LandingKeys landing = landing_;
      if (t >= begin)
        load_keys(t);
      else
        end_group();
      if (t < last) {
        pass_on(landing);
        load_values(t + 1, value_id_);
      }
      end_group();
    }
  }

  // --- tiles --------------------------------------------------------------------------------

  HEDDLE_DEVICE void load_q() {
    if (kBoxesOfQ && maps_.q_usable) return copy_q_boxes();
    uint8_t* tile = smem_.q[streams_.q_stage()];
    const uint64_t* full = &smem_.q_full[streams_.q_stage()];
    const auto is_real = [&](int row) { return row < record().item.num_rows; };
    Rows::template copy<QTile, false>(shared_address(tile), static_cast<const uint16_t*>(p_.q), [&](int row) {
      const int packed = record().item.row_begin + row;
      const int64_t q_row = record().item.qo_begin + packed / Spec::kGroup;
      const int head = record().kv_head * Spec::kGroup + packed % Spec::kGroup;
      return is_real(row) ? q_row * p_.q_row_stride + head * p_.q_head_stride : kNotSeen;
    });
    if constexpr (Hooks::has_query_transform) {
      wait_for_copies();
      producer_sync();
      transform_rows<Spec::kType, QTile, Hooks::query_pair, 2>(
          tile, Spec::kTile.rows, producer_thread(), kWarpgroupSize, is_real(Spec::kTile.rows - 1),
          [&](float x, float pair, int dim, int row, int) {
            return hooks_.query_transform(x, pair, dim, row_of<Spec>(record(), row).context);
          },
          is_real);
      end_transform(full);
    } else {
      arrive_after_copies(full);
    }
  }

  // Rows past the item's end come too, from whatever follows in q: nobody asks what becomes of them.
  HEDDLE_DEVICE void copy_q_boxes() {
    uint64_t* full = &smem_.q_full[streams_.q_stage()];
    const int block = producer_thread();
    arrive(full, warp_ == 0 ? QTile::kBytes : 0);
    if (block < QTile::kBlocks)
      copy_box(shared_address(smem_.q[streams_.q_stage()]) + block * QTile::kBlockBytes, maps_.q, full,
               block * QTile::kBlockColumns, record().kv_head * Spec::kGroup,
               record().item.qo_begin + record().item.row_begin / Spec::kGroup);
  }

  HEDDLE_DEVICE void load_keys(int t) {
    const int start = tiles_.range.start(t);
    if (tiles_.finds_keys_transformed()) return load_transformed_keys(t, start);
    if (!Hooks::has_key_transform && in_boxes(t)) return copy_boxes<KTile>(maps_.k, key_id_, start);
    const uint16_t* keys = static_cast<const uint16_t*>(p_.k) + tiles_.kv_head * p_.k_head_stride;
    gather<KTile, kBoxRows == 0 || Hooks::has_key_transform>(keys, start, [&](int row) {
      return Address::k_offset(p_, record().item.kv_offset, key_id_, start + row);
    });
    if constexpr (Hooks::has_key_transform) {
      cp_async_commit();
      landing_ = {start, ring_.stage};
    } else {
      arrive_after_copies(&smem_.full[ring_.stage]);
    }
    ring_.advance();
  }

  // A whole tile is one box for each block of columns.
  HEDDLE_DEVICE void load_transformed_keys(int t, int start) {
    const int row = tiles_.key_row + start;
    const uint64_t* full = &smem_.full[ring_.stage];
    if (maps_.transformed_usable && tiles_.whole.contain(t)) {
      stay_together();
      wait_until_empty();
      arrive(full, warp_ == 0 ? KTile::kBytes : 0);
      if (warp_ == 0 && is_elected())
#pragma unroll
        for (int block = 0; block < KTile::kBlocks; ++block)
          copy_box(shared_address(smem_.stage[ring_.stage]) + block * KTile::kBlockBytes, maps_.transformed, full,
                   block * KTile::kBlockColumns, tiles_.kv_head, row);
    } else {
      gather<KTile, false>(static_cast<const uint16_t*>(p_.transformed_keys), start, [&](int i) {
        return transformed_key_offset<Spec::kHeadDim>(p_, row + i, tiles_.kv_head);
      });
      arrive_after_copies(full);
    }
    ring_.advance();
  }

  // Keys that a hook changes land while those behind them are under way: two groups, a tile of V (or, in front
  // of a stream's first, nothing) and the next K.
  struct LandingKeys {
    int start, stage;
  };
  HEDDLE_DEVICE static void end_group() {
    if constexpr (Hooks::has_key_transform) cp_async_commit();
  }
  HEDDLE_DEVICE void pass_on(const LandingKeys& keys) const {
    if constexpr (Hooks::has_key_transform) {
      if (tiles_.finds_keys_transformed()) return;
      cp_async_wait<2>();
      transform_tile<KTile, false>(keys.stage, keys.start);
    }
  }

  HEDDLE_DEVICE void load_values(int t, int row_id) {
    const int start = tiles_.range.start(t);
    if (!Hooks::has_value_transform && in_boxes(t)) return copy_boxes<VTile>(maps_.v, row_id, start);
    const uint16_t* values = static_cast<const uint16_t*>(p_.v) + tiles_.kv_head * p_.v_head_stride;
    gather<VTile, kBoxRows == 0 || Hooks::has_value_transform>(values, start, [&](int row) {
      return Address::v_offset(p_, record().item.kv_offset, row_id, start + row);
    });
    if constexpr (Hooks::has_value_transform) {
      wait_for_copies();
      transform_tile<VTile, true>(ring_.stage, start);
    } else {
      arrive_after_copies(&smem_.full[ring_.stage]);
    }
    ring_.advance();
  }

  HEDDLE_DEVICE bool all_seen(int start) const {
    return record().some_see.contains_all(start, start + Spec::kTile.kv);
  }
  HEDDLE_DEVICE bool in_boxes(int t) const { return kBoxRows > 0 && maps_.kv_usable && tiles_.whole.contain(t); }

  HEDDLE_DEVICE void wait_until_empty() const { barrier_wait(&smem_.empty[ring_.stage], ring_.parity ^ 1); }
  // In front of a stage that all warps wait for: a barrier tells only the last round from this one.
  HEDDLE_DEVICE void stay_together() {
    if (kFirstWarpLoads && is_apart_) producer_sync();
    is_apart_ = false;
  }

  // A tile by the threads. What a whole one needs is looked up while the stage may still be in use; where boxes bring
  // those, one copy of this code serves the rest.
  template <class Tile, bool kWhole, class OffsetOf>
  HEDDLE_DEVICE void gather(const uint16_t* base, int start, const OffsetOf& offset_of) {
    const uint32_t tile = shared_address(smem_.stage[ring_.stage]);
    stay_together();
    if (kWhole && all_seen(start)) {
      const int64_t looked_up = offset_of(looked_up_row(0));
      wait_until_empty();
      Rows::template copy<Tile, true>(tile, base, [&](int) { return looked_up; });
    } else {
      wait_until_empty();
      Rows::template copy<Tile, false>(
          tile, base, [&](int row) { return record().some_see.contains(start + row) ? offset_of(row) : kNotSeen; });
    }
  }

  // A tile through the copy engine: the warps take its boxes' rows in turn, in all blocks of columns. Page ids lie with
  // the lanes that look up those rows.
  template <class Tile>
  HEDDLE_DEVICE void copy_boxes(const TensorMaps::Map& map, int row_id, int start) {
    constexpr int kBoxes = Tile::kRows / max_of(kBoxRows, 1);  // of a block of columns
    constexpr int kWarps = kFirstWarpLoads ? 1 : kWarpgroupWarps;
    constexpr int kMost = (kBoxes + kWarps - 1) / kWarps;  // of those, a warp's
    constexpr bool kSame = kBoxes % kWarps == 0;           // as many for every warp
    is_apart_ = true;
    if (kFirstWarpLoads && warp_ > 0) return ring_.advance();
    int pages[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) pages[i] = __shfl_sync(kFullMask, row_id, Rows::lane_of(box_row(i)));
    const uint64_t* full = &smem_.full[ring_.stage];
    const uint32_t tile = shared_address(smem_.stage[ring_.stage]);
    wait_until_empty();
    if (is_elected()) {
      const int own = kSame ? kMost : (kBoxes + kWarps - 1 - warp_) / kWarps;
      expect_and_arrive(full, own * Tile::kBlocks * kBoxBytes, kWarpgroupSize / kWarps);
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        if (!kSame && i >= own) break;
        const int row = box_row(i);
#pragma unroll
        for (int block = 0; block < Tile::kBlocks; ++block) {
          const uint32_t to = tile + block * Tile::kBlockBytes + row * Tile::kRowBytes;
          if constexpr (Spec::kPageSize == 0)
            copy_box(to, map, full, block * Tile::kBlockColumns, tiles_.kv_head,
                     static_cast<int>(record().item.kv_offset) + start + row);
          else
            copy_box(to, map, full, block * Tile::kBlockColumns, tiles_.kv_head, (start + row) % Spec::kPageSize,
                     pages[i]);
        }
      }
    }
    ring_.advance();
  }
  // First row of this warp's i-th boxes.
  HEDDLE_DEVICE int box_row(int i) const {
    return (kFirstWarpLoads ? i : i * kWarpgroupWarps + warp_) * kBoxRows;
  }

  // A tile of which this thread's copies have landed, as a hook wants it, and on to the consumers.
  template <class Tile, bool kIsV>
  HEDDLE_DEVICE void transform_tile(int stage, int start) const {
    const WorkItem& item = record().item;
    const HookContext context = key_context(item.request, item.qo_len, item.kv_len, -1, record().kv_head, Spec::kGroup);
    const LandedKeys keys{Spec::kTile.kv, start, all_seen(start),
                          [&](int row) { return record().some_see.contains(start + row); }};
    producer_sync();
    transform_keys<Spec, kIsV, 4, Tile>(smem_.stage[stage], keys, producer_thread(), kWarpgroupSize, context, hooks_);
    end_transform(&smem_.full[stage]);
  }

  HEDDLE_DEVICE void end_transform(const uint64_t* full) const {
    fence_async_proxy();
    arrive(full);
  }

  // --- arrivals: one for each thread of the producer and phase -------------------------------------

  // For this warp's threads. Makes the phase wait for the copy engine's bytes too.
  HEDDLE_DEVICE void arrive(const uint64_t* full, int bytes = 0) const {
    __syncwarp();
    if (is_elected()) expect_and_arrive(full, bytes);
  }
  static HEDDLE_DEVICE void expect_and_arrive(const uint64_t* full, int bytes, int threads = kWarpSize) {
    if (bytes > 0) barrier_expect(full, bytes);
    barrier_arrive(full, threads);
  }
  static HEDDLE_DEVICE void arrive_after_copies(const uint64_t* full) { barrier_arrive_after_copies(full); }
  static HEDDLE_DEVICE void wait_for_copies() {
    cp_async_commit();
    cp_async_wait<0>();
  }

  HEDDLE_DEVICE int looked_up_row(int pass) const { return Rows::looked_up(pass); }
  // Page id of the row that this lane looks up in tile t.
  HEDDLE_DEVICE void fetch_row_id(int t) {
    if (Spec::kPageSize == 0 || t < tiles_.range.begin) return;
    const int kv_pos = tiles_.range.start(t) + looked_up_row(0);
    next_id_ = Address::row_id(p_, record().item.kv_offset, kv_pos, record().some_see.contains(kv_pos));
  }

  HEDDLE_DEVICE const AppendStream& record() const { return streams_.record(); }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const TensorMaps& maps_;
  Smem& smem_;
  AppendSm90Streams<Spec, Hooks> streams_;
  const int warp_;  // of the producer
  Tiles tiles_;
  RingPlace<Smem::kStages> ring_;
  int next_id_ = 0, key_id_ = 0, value_id_ = 0;
  LandingKeys landing_ = {};
  bool is_apart_ = false;  // the first warp from the others
};

}  // namespace heddle
