// The streams of a CTA, as the producer of append_sm90 walks them: every (work item, kv head) gets a record, from
// which the producer loads and the consumers compute.
#pragma once

#include "templates/append_sm90_smem.cuh"

namespace heddle {

// A thread of the producer, and a barrier of all of them.
HEDDLE_DEVICE int producer_thread() { return threadIdx.x % kWarpgroupSize; }
HEDDLE_DEVICE void producer_sync() { named_barrier_sync(kProducerBarrier, kWarpgroupSize); }

// Visited tiles [begin, end) that `seen` covers as a whole. Sink tiles in front of a gap count as boundaries: there
// is one, seldom two.
struct WholeTiles {
  int begin, end;

  WholeTiles() = default;
  template <int kKeys>
  static HEDDLE_DEVICE WholeTiles of(const KeyRange& seen, int gap_begin, int gap_tiles) {
    const int first = gap_tiles > 0 ? gap_begin : 0;
    WholeTiles tiles;
    tiles.begin = max_of((seen.lo + kKeys - 1) / kKeys - gap_tiles, first);
    tiles.end = seen.hi / kKeys - gap_tiles;
    return tiles;
  }
  HEDDLE_DEVICE bool contain(int t) const { return t >= begin && t < end; }
};

// What the loop over a stream's tiles asks of its record, in (uniform) registers: shared memory would be asked anew
// behind every barrier.
template <class Spec>
struct StreamTiles {
  TileRange<Spec::kTile.kv> range;
  WholeTiles whole;  // for some row
  int kv_head;
  int key_row = kNoKeyRow;

  StreamTiles() = default;
  HEDDLE_DEVICE explicit StreamTiles(const AppendStream& s) : range(s.item), kv_head(uniform(s.kv_head)) {
    range.begin = uniform(range.begin), range.end = uniform(range.end);
    range.gap_begin = uniform(range.gap_begin), range.gap_tiles = uniform(range.gap_tiles);
    whole = WholeTiles::of<Spec::kTile.kv>(s.some_see, range.gap_begin, range.gap_tiles);
    whole.begin = uniform(whole.begin), whole.end = uniform(whole.end);
    if constexpr (Spec::kTransformedKeys) key_row = uniform(s.key_row);
  }
  HEDDLE_DEVICE bool finds_keys_transformed() const { return Spec::kTransformedKeys && key_row != kNoKeyRow; }
};

template <class Spec, class Hooks>
class AppendSm90Streams {
  using Smem = AppendSm90Smem<Spec>;
  static constexpr int kFirstHead = -1;  // of the next item

 public:
  HEDDLE_DEVICE AppendSm90Streams(const AttentionParams& params, Smem& smem) : p_(params), smem_(smem) {
    const WorkList work(params, Pipeline::append);
    next_item_ = work.items + work.begin;
    items_left_ = work.end - work.begin;
    word_ = lane_index() < kMaskWords ? reinterpret_cast<const uint32_t*>(&work.header->mask)[lane_index()] : 0;
    fetch_item();
  }

  // Waits until the next stream's places are free and writes its record. False at the end of the work.
  HEDDLE_DEVICE bool begin() {
    barrier_wait(&smem_.q_empty[q_.stage], q_.parity ^ 1);
    record_ = &smem_.record(number_);
    if (producer_thread() < kWarpSize) write_record();
    producer_sync();
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
  HEDDLE_DEVICE void end() {
    q_.advance();
    ++number_;
  }

  HEDDLE_DEVICE const AppendStream& record() const { return *record_; }
  HEDDLE_DEVICE int q_stage() const { return q_.stage; }  // where its query rows go

 private:
  // Items are fetched while the tiles of the one in front are loaded, a word a lane: one register, and no
  // round trip to memory when a stream begins.
  HEDDLE_DEVICE void fetch_item() {
    const int lane = lane_index();
    if (items_left_ > 0 && lane >= kMaskWords && lane < kRecordWords)
      word_ = reinterpret_cast<const uint32_t*>(next_item_)[lane - kMaskWords];
  }

  // The first warp together; each lane says by itself that it has written.
  HEDDLE_DEVICE void write_record() const {
    AppendStream& s = *record_;
    const bool is_end = items_left_ == 0;
    if (!is_end && lane_index() < kRecordWords) reinterpret_cast<uint32_t*>(&s)[lane_index()] = word_;
    __syncwarp();
    if constexpr (Spec::kRowsGiven)
      if (!is_end) write_given_ranges(s);
    if (lane_index() == 0) write_rest(s, is_end);
    barrier_arrive(&smem_.q_full[q_.stage]);
  }

  HEDDLE_DEVICE void write_rest(AppendStream& s, bool is_end) const {
    if (!is_end) {
      s.kv_head = next_head_ == kFirstHead ? s.item.kv_head_begin : next_head_;
      if constexpr (Spec::kTransformedKeys)
        s.key_row = transformed_key_row(reinterpret_cast<const PlanHeader*>(p_.plan), s.item.request);
      if constexpr (!Spec::kRowsGiven) {
        s.some_see = seen_by_some<Spec::kGroup>(s.mask, s.item);
        write_whole_tiles(s, seen_by_all<Spec::kGroup, Hooks>(s.mask, s.item));
      }
    }
    s.is_end = is_end;
  }

  // The first warp together.
  HEDDLE_DEVICE void write_given_ranges(AppendStream& s) const {
    const auto* plan = reinterpret_cast<const PlanHeader*>(p_.plan);
    const KeyRange some = given_to_some<Spec::kGroup>(plan, s.item);
    const KeyRange all = given_to_all<Spec::kGroup, Hooks>(plan, s.item);
    if (lane_index() > 0) return;
    s.some_see = some;
    write_whole_tiles(s, all);
  }

  static HEDDLE_DEVICE void write_whole_tiles(AppendStream& s, const KeyRange& all_see) {
    const WholeTiles full = WholeTiles::of<Spec::kTile.kv>(all_see, s.item.gap_begin, s.item.gap_tiles);
    s.full_begin = full.begin;
    s.full_end = full.end;
  }

  const AttentionParams& p_;
  Smem& smem_;
  AppendStream* record_ = nullptr;
  RingPlace<Smem::kQBuffers> q_;
  int number_ = 0;
  const WorkItem* next_item_ = nullptr;
  uint32_t word_ = 0;  // this lane's of the next record
  int items_left_ = 0, next_head_ = kFirstHead;
};

}  // namespace heddle
