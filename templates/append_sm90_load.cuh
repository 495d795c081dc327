// The producer of append_sm90: one warpgroup that walks the CTA's work ahead of the consumers. For each
// stream (work item, kv head) it writes a record, copies the query rows, then K and V tiles in
// the order of their use, each tile into the next stage of one ring, the last tile of keys first:
//
//   K(n) | K(n-1) V(n) | K(n-2) V(n-1) | ... | V(0)
//
// Queries, and tiles that are seen as a whole where rows are ragged or pages large enough, come through the
// copy engine, a box a lane of all four warps. All others are 16-byte gathers by every thread, which take
// pages of any size: a lane looks up the rows that its warp copies, one each, with page ids read one tile
// ahead. Rows that nobody sees become zeros without a read. Nobody here waits for a copy to land:
// barriers do (`arrive`, `arrive_after_copies`), and consumers fence what they then read. Only hooks
// on q, k and v wait, which change a tile in place before it is passed on.
#pragma once

#include "templates/append_sm90_smem.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90Loader {
  using Smem = AppendSm90Smem<Spec>;
  using QTile = typename Smem::QTile;
  using KTile = typename Smem::KTile;
  using VTile = typename Smem::VTile;
  using Address = KvAddress<Spec::kPageSize>;
  // How the lanes of a warp lie on a tile: kLanes a row of a block, kStep rows at once; the four warps
  // take turns, so that a thread's rows are 4 * kStep apart and share one swizzle.
  static constexpr int kLanes = KTile::kBlockChunks;  // of V's as well
  static constexpr int kStep = kWarpSize / kLanes;
  static constexpr int kStride = kWarpgroupWarps * kStep;
  static constexpr int kFirstHead = -1;  // of the next item
  static constexpr int kBoxRows = Spec::kBoxRows;
  static constexpr int kBoxBytes = kBoxRows * KTile::kRowBytes;
  static constexpr bool kBoxesOfQ = Spec::kQBoxTokens > 0 && !Hooks::has_query_transform;
  static_assert(kBoxRows % kStride == 0, "every warp looks up a row of each box");
  static_assert(kBoxRows == 0 || Smem::kStageBytes / max_of(kBoxBytes, 1) <= kWarpgroupSize, "a lane a box");
  static_assert(Spec::kTile.rows % kStride == 0 && Spec::kTile.kv % kStride == 0, "a warp copies whole steps");
  static_assert(Spec::kTile.kv <= kWarpgroupSize, "one lane looks up one row");

 public:
  HEDDLE_DEVICE AppendSm90Loader(const AttentionParams& params, const Hooks& hooks, const TensorMaps& maps, Smem& smem)
      : p_(params), hooks_(hooks), maps_(maps), smem_(smem), warp_(uniform(thread() / kWarpSize)) {}

  HEDDLE_DEVICE void run() {
    const WorkList work(p_, Pipeline::append);
    next_item_ = work.items + work.begin;
    items_left_ = work.end - work.begin;
    word_ = lane_index() < kMaskWords ? reinterpret_cast<const uint32_t*>(&work.header->mask)[lane_index()] : 0;
    fetch_item();
    while (begin_stream()) {
      load_q();
      load_tiles();
      q_.advance();
      ++stream_;
    }
    arrive(&smem_.q_full[q_.stage]);  // for the rows that the end does not have
    wait_for_copies();                // none outlives its thread
  }

 private:
  // Waits until the stream's places are free and writes its record. False at the end of the work.
  HEDDLE_DEVICE bool begin_stream() {
    barrier_wait(&smem_.q_empty[q_.stage], q_.parity ^ 1);
    record_ = &smem_.record(stream_);
    if (thread() < kWarpSize) write_record();
    sync();
    if (record_->is_end) return false;
    next_head_ = record_->kv_head + 1;
    if (next_head_ == record_->item.kv_head_end) {
      next_head_ = kFirstHead;
      ++next_item_;
      --items_left_;
      fetch_item();
    }
    return true;
  }

  // Items are fetched while the tiles of the one in front are loaded, a word a lane: one register, and no
  // round trip to memory when a stream begins.
  HEDDLE_DEVICE void fetch_item() {
    const int lane = lane_index();
    if (items_left_ > 0 && lane >= kMaskWords && lane < kRecordWords)
      word_ = reinterpret_cast<const uint32_t*>(next_item_)[lane - kMaskWords];
  }

  // The first warp together.
  HEDDLE_DEVICE void write_record() const {
    AppendStream& s = *record_;
    const bool is_end = items_left_ == 0;
    if (!is_end && lane_index() < kRecordWords) reinterpret_cast<uint32_t*>(&s)[lane_index()] = word_;
    __syncwarp();
    if (lane_index() > 0) return;
    if (!is_end) {
      s.kv_head = next_head_ == kFirstHead ? s.item.kv_head_begin : next_head_;
      s.some_see = seen_by_some<Spec::kGroup>(s.mask, s.item);
      find_full_tiles(s);
    }
    s.is_end = is_end;
    barrier_arrive(&smem_.q_full[q_.stage]);
  }

  // Sink tiles in front of a gap count as boundaries: there is one, seldom two.
  static HEDDLE_DEVICE void find_full_tiles(AppendStream& s) {
    constexpr int kKeys = Spec::kTile.kv;
    const KeyRange seen = seen_by_all<Spec::kGroup, Hooks>(s.mask, s.item);
    const int gap = s.item.gap_tiles, first = gap > 0 ? s.item.gap_begin : 0;
    s.full_begin = max_of((seen.lo + kKeys - 1) / kKeys - gap, first);
    s.full_end = seen.hi / kKeys - gap;
  }

  // What the loop over a stream's tiles asks of its record, in (uniform) registers: shared memory would be asked anew
  // behind every barrier.
  struct Stream {
    TileRange<Spec::kTile.kv> range;
    KeyRange some_see;
    int kv_head;
    int64_t kv_offset;

    Stream() = default;
    HEDDLE_DEVICE explicit Stream(const AppendStream& s)
        : range(s.item), some_see(s.some_see), kv_head(uniform(s.kv_head)), kv_offset(s.item.kv_offset) {
      range.begin = uniform(range.begin), range.end = uniform(range.end);
      range.gap_begin = uniform(range.gap_begin), range.gap_tiles = uniform(range.gap_tiles);
      some_see.lo = uniform(some_see.lo), some_see.hi = uniform(some_see.hi), some_see.sink = uniform(some_see.sink);
    }
  };

  // Last tile first.
  HEDDLE_DEVICE void load_tiles() {
    tiles_ = Stream(*record_);
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
    copy_rows<QTile, false>(shared_address(smem_.q[q_.stage]), static_cast<const uint16_t*>(p_.q), [&](int row) {
      const int packed = record_->item.row_begin + row;
      const int64_t q_row = record_->item.qo_begin + packed / Spec::kGroup;
      const int head = record_->kv_head * Spec::kGroup + packed % Spec::kGroup;
      return row < record_->item.num_rows ? q_row * p_.q_row_stride + head * p_.q_head_stride : kNotSeen;
    });
    if constexpr (Hooks::has_query_transform) {
      wait_for_copies();
      sync();
      transform_rows<Spec::kType, QTile, Hooks::query_pair, 2>(
          smem_.q[q_.stage], Spec::kTile.rows, thread(), kWarpgroupSize, record_->item.num_rows == Spec::kTile.rows,
          [&](float x, float pair, int dim, int row, int) {
            return hooks_.query_transform(x, pair, dim, row_of<Spec>(*record_, row).context);
          },
          [&](int row) { return row < record_->item.num_rows; });
      end_transform(&smem_.q_full[q_.stage]);
    } else {
      arrive_after_copies(&smem_.q_full[q_.stage]);
    }
  }

  // Rows past the item's end come too, from whatever follows in q: nobody asks what becomes of them.
  HEDDLE_DEVICE void copy_q_boxes() {
    uint64_t* full = &smem_.q_full[q_.stage];
    const int block = thread();
    arrive(full, block == 0 ? QTile::kBytes : 0);
    if (block < QTile::kBlocks)
      copy_box(shared_address(smem_.q[q_.stage]) + block * QTile::kBlockBytes, maps_.q, full,
               block * QTile::kBlockColumns, record_->kv_head * Spec::kGroup,
               record_->item.qo_begin + record_->item.row_begin / Spec::kGroup);
  }

  HEDDLE_DEVICE void load_keys(int t) {
    const int start = tiles_.range.start(t);
    if (!Hooks::has_key_transform && in_boxes(start)) return copy_boxes<KTile>(maps_.k, key_id_, start);
    gather<KTile, kBoxRows == 0 || Hooks::has_key_transform>(static_cast<const uint16_t*>(p_.k) + tiles_.kv_head * p_.k_head_stride, start, [&](int row) {
      return Address::k_offset(p_, tiles_.kv_offset, key_id_, start + row);
    });
    if constexpr (Hooks::has_key_transform) {
      cp_async_commit();
      landing_ = {start, ring_.stage};
    } else {
      arrive_after_copies(&smem_.full[ring_.stage]);
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
      cp_async_wait<2>();
      transform_tile<KTile, false>(keys.stage, keys.start);
    }
  }

  HEDDLE_DEVICE void load_values(int t, int row_id) {
    const int start = tiles_.range.start(t);
    if (!Hooks::has_value_transform && in_boxes(start)) return copy_boxes<VTile>(maps_.v, row_id, start);
    gather<VTile, kBoxRows == 0 || Hooks::has_value_transform>(static_cast<const uint16_t*>(p_.v) + tiles_.kv_head * p_.v_head_stride, start, [&](int row) {
      return Address::v_offset(p_, tiles_.kv_offset, row_id, start + row);
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
    return tiles_.some_see.contains_all(start, start + Spec::kTile.kv);
  }
  HEDDLE_DEVICE bool in_boxes(int start) const { return kBoxRows > 0 && maps_.kv_usable && all_seen(start); }

  HEDDLE_DEVICE void wait_until_empty() const { barrier_wait(&smem_.empty[ring_.stage], ring_.parity ^ 1); }

  // A tile by the threads. What a whole one needs is looked up while the stage may still be in use; where boxes bring
  // those, one copy of this code serves the rest.
  template <class Tile, bool kWhole, class OffsetOf>
  HEDDLE_DEVICE void gather(const uint16_t* base, int start, const OffsetOf& offset_of) const {
    const uint32_t tile = shared_address(smem_.stage[ring_.stage]);
    if (kWhole && all_seen(start)) {
      const int64_t looked_up = offset_of(looked_up_row(0));
      wait_until_empty();
      copy_rows<Tile, true>(tile, base, [&](int) { return looked_up; });
    } else {
      wait_until_empty();
      copy_rows<Tile, false>(
          tile, base, [&](int row) { return tiles_.some_see.contains(start + row) ? offset_of(row) : kNotSeen; });
    }
  }

  // A tile through the copy engine, the boxes in turn by each of the warps. Page ids lie with the lanes
  // that look up rows of the boxes.
  template <class Tile>
  HEDDLE_DEVICE void copy_boxes(const TensorMaps::Map& map, int row_id, int start) {
    constexpr int kBoxes = Tile::kBytes / max_of(kBoxBytes, 1);
    constexpr int kMost = (kBoxes + kWarpgroupWarps - 1) / kWarpgroupWarps;  // of a warp
    const auto row_of_box = [&](uint32_t i) -> int { return (i * kWarpgroupWarps + warp_) / Tile::kBlocks * kBoxRows; };
    int pages[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) pages[i] = __shfl_sync(kFullMask, row_id, row_of_box(i) / kStride * kStep);
    const uint64_t* full = &smem_.full[ring_.stage];
    const uint32_t tile = shared_address(smem_.stage[ring_.stage]);
    wait_until_empty();
    if (is_elected()) {
      expect_and_arrive(full, (kBoxes + kWarpgroupWarps - 1 - warp_) / kWarpgroupWarps * kBoxBytes);
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        const uint32_t box = i * kWarpgroupWarps + warp_;
        const int block = box % Tile::kBlocks, row = row_of_box(i);
        const uint32_t to = tile + block * Tile::kBlockBytes + row * Tile::kRowBytes;
        if (kBoxes % kWarpgroupWarps != 0 && box >= kBoxes) break;
        if constexpr (Spec::kPageSize == 0)
          copy_box(to, map, full, block * Tile::kBlockColumns, tiles_.kv_head,
                   static_cast<int>(tiles_.kv_offset) + start + row);
        else
          copy_box(to, map, full, block * Tile::kBlockColumns, tiles_.kv_head, (start + row) % Spec::kPageSize, pages[i]);
      }
    }
    ring_.advance();
  }

  // A tile of which this thread's copies have landed, as a hook wants it, and on to the consumers.
  template <class Tile, bool kIsV>
  HEDDLE_DEVICE void transform_tile(int stage, int start) const {
    const HookContext context = {record_->item.request, record_->kv_head * Spec::kGroup, record_->kv_head, -1, -1, -1,
                                 record_->item.qo_len, record_->item.kv_len};
    const LandedKeys keys{Spec::kTile.kv, start, all_seen(start),
                          [&](int row) { return tiles_.some_see.contains(start + row); }};
    sync();
    transform_keys<Spec, kIsV, 4, Tile>(smem_.stage[stage], keys, thread(), kWarpgroupSize, context, hooks_);
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
  static HEDDLE_DEVICE void expect_and_arrive(const uint64_t* full, int bytes) {
    if (bytes > 0) barrier_expect(full, bytes);
    barrier_arrive(full, kWarpSize);
  }
  static HEDDLE_DEVICE void arrive_after_copies(const uint64_t* full) { barrier_arrive_after_copies(full); }
  static HEDDLE_DEVICE void wait_for_copies() {
    cp_async_commit();
    cp_async_wait<0>();
  }

  // --- rows ---------------------------------------------------------------------------------

  // The row that this lane looks up, of the `pass`-th kWarpSize rows that its warp copies.
  HEDDLE_DEVICE int looked_up_row(int pass) const {
    const int lane = thread() % kWarpSize, warp = thread() / kWarpSize;
    return (pass * kLanes + lane / kStep) * kStride + warp * kStep + lane % kStep;
  }

  // Page id of the row that this lane looks up in tile t.
  HEDDLE_DEVICE void fetch_row_id(int t) {
    if (Spec::kPageSize == 0 || t < tiles_.range.begin) return;
    const int kv_pos = tiles_.range.start(t) + looked_up_row(0);
    next_id_ = Address::row_id(p_, tiles_.kv_offset, kv_pos, tiles_.some_see.contains(kv_pos));
  }

  // `offset_of(row)`: where the row lies, in elements, or, where not all are seen, kNotSeen.
  template <class Tile, bool kAllSeen, class OffsetOf>
  HEDDLE_DEVICE void copy_rows(uint32_t tile, const uint16_t* base, const OffsetOf& offset_of) const {
    constexpr int kTurns = Tile::kRows / kStride;
    const int lane = thread() % kWarpSize, warp = thread() / kWarpSize;
    const int row = lane / kLanes, chunk = lane % kLanes;
    const uint32_t to = tile + Tile::chunk_offset(warp * kStep + row, 0, chunk);
    base += chunk * kChunkElements;
    int64_t looked_up = 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn % kLanes == 0) looked_up = offset_of(looked_up_row(turn / kLanes));
      const int64_t offset = __shfl_sync(kFullMask, looked_up, turn % kLanes * kStep + row);
      const bool seen = kAllSeen || static_cast<int>(offset >> 32) != static_cast<int>(kNotSeen >> 32);
      const uint16_t* from = base + (seen ? offset : 0);
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block)
        cp_async_16(to + turn * kStride * Tile::kRowBytes + block * Tile::kBlockBytes, from + block * Tile::kBlockColumns,
                    seen && Tile::has_chunk(block, chunk));
    }
  }

  static HEDDLE_DEVICE int thread() { return threadIdx.x % kWarpgroupSize; }
  HEDDLE_DEVICE void sync() const { named_barrier_sync(kProducerBarrier, kWarpgroupSize); }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const TensorMaps& maps_;
  Smem& smem_;
  const uint32_t warp_;  // of the producer
  AppendStream* record_ = nullptr;
  Stream tiles_;
  RingPlace<Smem::kStages> ring_;
  RingPlace<Smem::kQBuffers> q_;
  int stream_ = 0;
  const WorkItem* next_item_ = nullptr;
  uint32_t word_ = 0;  // this lane's of the next record
  int items_left_ = 0, next_head_ = kFirstHead;
  int next_id_ = 0, key_id_ = 0, value_id_ = 0;
  LandingKeys landing_ = {};
};

}  // namespace heddle
