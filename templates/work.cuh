// Walking the work list on the device: the section of a pipeline, the visible range of a query
// tile, and the cursor that runs ahead of the computation to load K/V tiles.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

// One CTA's part of a pipeline's work list. A grid has as many CTAs as its section of the plan.
struct WorkList {
  const PlanHeader* header;
  const WorkItem* items;
  int begin, end;  // this CTA's items

  HEDDLE_DEVICE WorkList(const AttentionParams& p, Pipeline pipeline) {
    header = reinterpret_cast<const PlanHeader*>(p.plan);
    begin = p.cta_begin[blockIdx.x];
    end = p.cta_begin[blockIdx.x + 1];
    items = reinterpret_cast<const WorkItem*>(p.plan + header->section[static_cast<int>(pipeline)].items_offset);
  }
};

// Append and decode of one run side by side (Spec::kSideBySide): append stands in front in the stream, and decode begins
// wherever one of its SMs becomes free. It may not wait for append then, so append lets it go only once all that is in
// front of both has ended; and decode's first CTA waits for append in the end, so that what stands behind waits for
// both. Without work for append nothing of that is needed: decode waits as always. (States of shared prefixes are awaited
// word by word: merge.cuh.)
//
// Tried on an H200 and not taken: decode on a part of the SMs alone, and append on the others for as long
// (mixed_1x2k_63x1 401 to 435 us for parts of 0.5 to 0.95, 453 and 475 for 0.4 and 0.3; 404 to 409 one behind the other).
// An SM reads 38 to 41 bytes/ns with decode's two CTAs (32 with one), where 33 from each of 132 are what memory gives:
// decode needs nearly all of them. (Alone, 66 SMs read 62 bytes/ns each. Append's own reads of L2, some 36 bytes/ns an SM,
// may be what is in their way: not measured.)
template <class Spec>
HEDDLE_DEVICE bool is_side_by_side(const AttentionParams& p) {
  const auto* header = reinterpret_cast<const PlanHeader*>(p.plan);
  return Spec::kSideBySide && header->section[static_cast<int>(Pipeline::append)].num_items > 0;
}

// Of append. What has been read so far is the plan, which no kernel in front of this one writes.
template <class Spec>
HEDDLE_DEVICE void take_turn_in_front(const AttentionParams& p) {
  if (is_side_by_side<Spec>(p)) {
    wait_for_predecessor();
    release_successor();
  } else {
    release_successor();
    wait_for_predecessor();
  }
}

// Keys that one row (or, joined, a range of rows) may see: [lo, hi) and [0, sink).
struct KeyRange {
  int lo, hi, sink;

  HEDDLE_DEVICE bool contains(int kv_pos) const {
    return (kv_pos >= lo && kv_pos < hi) || kv_pos < sink;
  }
  HEDDLE_DEVICE bool contains_all(int begin, int end) const {
    return (begin >= lo && end <= hi) || end <= sink;
  }
  HEDDLE_DEVICE bool contains_some(int begin, int end) const {
    return max_of(begin, lo) < min_of(end, hi) || begin < sink;
  }
  HEDDLE_DEVICE bool is_empty() const { return lo >= hi && sink <= 0; }
  // One of them, if there are any.
  HEDDLE_DEVICE int some() const { return lo < hi ? lo : 0; }
};

HEDDLE_DEVICE int clamp_to_int(int64_t x, int low, int high) {
  return x < low ? low : x > high ? high : static_cast<int>(x);
}

HEDDLE_DEVICE KeyRange key_range(const MaskBounds& mask, int q_pos, int kv_len) {
  KeyRange range;
  const int causal_end = mask.causal ? clamp_to_int(int64_t(q_pos) + 1, 0, kv_len) : kv_len;
  range.lo = mask.window_left == kUnbounded
                 ? 0
                 : clamp_to_int(int64_t(q_pos) - mask.window_left, 0, kv_len);
  range.hi = mask.window_right == kUnbounded
                 ? causal_end
                 : clamp_to_int(int64_t(q_pos) + mask.window_right + 1, 0, causal_end);
  range.sink = min_of(mask.sink, causal_end);
  return range;
}

// Position of an item's first and last token.
template <int kGroup>
HEDDLE_DEVICE int first_q_pos(const WorkItem& item) {
  return item.kv_len - item.qo_len + item.row_begin / kGroup;
}
template <int kGroup>
HEDDLE_DEVICE int last_q_pos(const WorkItem& item) {
  return item.kv_len - item.qo_len + (item.row_begin + item.num_rows - 1) / kGroup;
}

// What some row, or every row, of an item sees. Bounds grow with q_pos, so its two ends decide.
template <int kGroup>
HEDDLE_DEVICE KeyRange seen_by_some(const MaskBounds& mask, const WorkItem& item) {
  const KeyRange low = key_range(mask, first_q_pos<kGroup>(item), item.kv_len);
  const KeyRange high = key_range(mask, last_q_pos<kGroup>(item), item.kv_len);
  return {low.lo, high.hi, high.sink};
}
// Without the keys that a free mask of new ones is asked of.
template <int kGroup, class Hooks>
HEDDLE_DEVICE KeyRange seen_by_all(const MaskBounds& mask, const WorkItem& item) {
  const KeyRange low = key_range(mask, first_q_pos<kGroup>(item), item.kv_len);
  const KeyRange high = key_range(mask, last_q_pos<kGroup>(item), item.kv_len);
  const int end = Hooks::masks_new_keys_only ? item.kv_len - item.qo_len : item.kv_len;
  return {high.lo, min_of(low.hi, end), min_of(low.sink, end)};
}

// Where the batch gives each row its range of keys (Spec::kRowsGiven), the plan holds what of it the declared mask
// leaves, and that alone decides. Neighbouring rows may then see any ranges, so an item asks all of its tokens: the
// whole warp together, a token a lane.
HEDDLE_DEVICE const RowKeys* row_keys(const PlanHeader* header) {
  return reinterpret_cast<const RowKeys*>(reinterpret_cast<const uint8_t*>(header) + header->row_keys_offset);
}
HEDDLE_DEVICE KeyRange given_range(const PlanHeader* header, int q_row) {
  const int2 keys = __ldg(reinterpret_cast<const int2*>(row_keys(header) + q_row));
  return {keys.x, keys.y, 0};
}

// Calls with the range of each of an item's tokens; a lane past the last token gets that one's again.
template <int kGroup, class Visit>
HEDDLE_DEVICE void for_given_tokens(const PlanHeader* header, const WorkItem& item, const Visit& visit) {
  const int first = item.row_begin / kGroup, last = (item.row_begin + item.num_rows - 1) / kGroup;
  for (int token = first; token <= last; token += kWarpSize)
    visit(given_range(header, item.qo_begin + min_of(token + lane_index(), last)));
}

// seen_by_some and seen_by_all from those. Rows that see nothing leave the union as it is, and an intersection empty.
template <int kGroup>
HEDDLE_DEVICE KeyRange given_to_some(const PlanHeader* header, const WorkItem& item) {
  KeyRange seen = {item.kv_len, 0, 0};
  for_given_tokens<kGroup>(header, item, [&](const KeyRange& keys) {
    seen.lo = min_of(seen.lo, keys.lo);
    seen.hi = max_of(seen.hi, keys.hi);
  });
  return {__reduce_min_sync(kFullMask, seen.lo), __reduce_max_sync(kFullMask, seen.hi), 0};
}
template <int kGroup, class Hooks>
HEDDLE_DEVICE KeyRange given_to_all(const PlanHeader* header, const WorkItem& item) {
  KeyRange seen = {0, Hooks::masks_new_keys_only ? item.kv_len - item.qo_len : item.kv_len, 0};
  for_given_tokens<kGroup>(header, item, [&](const KeyRange& keys) {
    seen.lo = max_of(seen.lo, keys.lo);
    seen.hi = min_of(seen.hi, keys.hi);
  });
  return {__reduce_max_sync(kFullMask, seen.lo), __reduce_min_sync(kFullMask, seen.hi), 0};
}

// Whoever decides, of an item that a whole warp asks about.
template <int kGroup, bool kRowsGiven>
HEDDLE_DEVICE KeyRange keys_of_some(const PlanHeader* header, const WorkItem& item) {
  if constexpr (kRowsGiven) return given_to_some<kGroup>(header, item);
  return seen_by_some<kGroup>(header->mask, item);
}
template <int kGroup, bool kRowsGiven, class Hooks>
HEDDLE_DEVICE KeyRange keys_of_all(const PlanHeader* header, const WorkItem& item) {
  if constexpr (kRowsGiven) return given_to_all<kGroup, Hooks>(header, item);
  return seen_by_all<kGroup, Hooks>(header->mask, item);
}

// The row of the workspace's transformed keys that key 0 of a request has, or would have; kNoKeyRow where its keys are
// transformed as they are read.
HEDDLE_DEVICE int transformed_key_row(const PlanHeader* header, int request) {
  if (header->key_row_offset == 0) return kNoKeyRow;
  return __ldg(reinterpret_cast<const int*>(reinterpret_cast<const uint8_t*>(header) + header->key_row_offset) + request);
}
// Where a row of them lies, in elements.
template <int kHeadDim>
HEDDLE_DEVICE int64_t transformed_key_offset(const AttentionParams& p, int row, int kv_head) {
  return (int64_t(row) * p.num_kv_heads + kv_head) * kHeadDim;
}

// Position of the first key of visited tile t.
template <int kTileKv>
HEDDLE_DEVICE int tile_start(const WorkItem& item, int t) {
  return (t >= item.gap_begin ? t + item.gap_tiles : t) * kTileKv;
}

// The part of an item that a loop over its tiles keeps in registers.
template <int kTileKv>
struct TileRange {
  int begin, end, gap_begin, gap_tiles;

  TileRange() = default;
  HEDDLE_DEVICE explicit TileRange(const WorkItem& item)
      : begin(item.tile_begin), end(item.tile_end), gap_begin(item.gap_begin), gap_tiles(item.gap_tiles) {}
  HEDDLE_DEVICE int start(int t) const { return (t >= gap_begin ? t + gap_tiles : t) * kTileKv; }
};

// A value from memory that has arrived. A loop that reads one which may still be under way waits each time round for its
// load's scoreboard, and so for every later load that counts on the same one.
HEDDLE_DEVICE int arrived(int not_negative) {
  int value;
  asm volatile("max.s32 %0, %1, 0;" : "=r"(value) : "r"(not_negative));  // which assemblers cannot know, or move
  return value;
}

// Steps through every (item, kv head, KV tile) of a CTA in the order in which they are computed.
template <int kTileKv, int kGroup, bool kRowsGiven, int kHeadsAbreast>
class LoadCursor {
 public:
  HEDDLE_DEVICE explicit LoadCursor(const WorkList& work)
      : next_(work.items + work.begin), end_(work.items + work.end), header_(work.header) {
    enter_next_item();
  }
  HEDDLE_DEVICE bool done() const { return done_; }
  HEDDLE_DEVICE int start() const { return tiles_.start(tile_); }
  HEDDLE_DEVICE int kv_head() const { return kv_head_; }  // the first of those that are read abreast
  HEDDLE_DEVICE int64_t kv_offset() const { return kv_offset_; }
  HEDDLE_DEVICE const WorkItem& item() const { return next_[-1]; }
  HEDDLE_DEVICE bool begins_head() const { return tile_ == tiles_.begin; }
  // Keys that no row of the tile sees are not read at all.
  HEDDLE_DEVICE const KeyRange& seen() const { return seen_; }

  HEDDLE_DEVICE void advance() {
    if (++tile_ < tiles_.end) return;
    tile_ = tiles_.begin;
    if ((kv_head_ += kHeadsAbreast) < item().kv_head_end) return;
    enter_next_item();
  }

 private:
  HEDDLE_DEVICE void enter_next_item() {
    WorkItem item;
    do {  // items without a visible tile load nothing
      done_ = next_ == end_;
      if (done_) return;
      item = *next_++;
    } while (item.tile_begin >= item.tile_end);
    tiles_ = TileRange<kTileKv>(item);
    tile_ = item.tile_begin;
    kv_head_ = item.kv_head_begin;
    kv_offset_ = item.kv_offset;
    seen_ = keys_of_some<kGroup, kRowsGiven>(header_, item);
  }

  // Own copies: a reference to a sibling member would keep the whole kernel state in local memory.
  const WorkItem* next_;
  const WorkItem* end_;
  const PlanHeader* header_;
  TileRange<kTileKv> tiles_;
  int64_t kv_offset_;
  KeyRange seen_;
  int kv_head_, tile_;
  bool done_;
};

inline constexpr int64_t kNotSeen = int64_t(1) << 63;  // in place of an offset

// Where K and V rows lie, in elements. A row id is a page id, or nothing when ragged.
template <int kPageSize>
struct KvAddress {
  static HEDDLE_DEVICE int row_id(const AttentionParams& p, int64_t kv_offset, int kv_pos, bool visible) {
    if constexpr (kPageSize == 0) return 0;
    return visible ? __ldg(p.kv_indices + kv_offset + kv_pos / max_of(kPageSize, 1)) : 0;
  }
  static HEDDLE_DEVICE int64_t k_offset(const AttentionParams& p, int64_t kv_offset, int id, int kv_pos) {
    if constexpr (kPageSize == 0) return (kv_offset + kv_pos) * p.k_row_stride;
    return id * p.k_page_stride + kv_pos % max_of(kPageSize, 1) * p.k_row_stride;
  }
  static HEDDLE_DEVICE int64_t v_offset(const AttentionParams& p, int64_t kv_offset, int id, int kv_pos) {
    if constexpr (kPageSize == 0) return (kv_offset + kv_pos) * p.v_row_stride;
    return id * p.v_page_stride + kv_pos % max_of(kPageSize, 1) * p.v_row_stride;
  }
};

}  // namespace heddle
