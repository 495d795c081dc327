// Walking the work list on the device: the section of a pipeline, the visible range of a query
// tile, and the cursor that runs ahead of the computation to load K/V tiles.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

// One CTA's part of a pipeline's work list.
struct WorkList {
  const PlanHeader* header;
  const WorkItem* items;
  const MergeRecord* merges;
  const RequestRecord* requests;
  int begin, end;  // this CTA's items

  HEDDLE_DEVICE WorkList(const uint8_t* plan, Pipeline pipeline) {
    header = reinterpret_cast<const PlanHeader*>(plan);
    const PlanSection& section = header->section[static_cast<int>(pipeline)];
    items = reinterpret_cast<const WorkItem*>(plan + section.items_offset);
    merges = reinterpret_cast<const MergeRecord*>(plan + section.merges_offset);
    requests = reinterpret_cast<const RequestRecord*>(plan + header->requests_offset);
    // A plan for fewer CTAs than the grid has is legal; the others have nothing to do.
    const int cta = blockIdx.x;
    const int* cta_begin = reinterpret_cast<const int*>(plan + section.cta_begin_offset);
    begin = end = 0;
    if (cta < section.num_ctas) {
      begin = cta_begin[cta];
      end = cta_begin[cta + 1];
    }
  }
};

// Keys that one row (or, joined, a range of rows) may see: [lo, hi) and [0, sink).
struct KeyRange {
  int lo, hi, sink;

  HEDDLE_DEVICE bool contains(int kv_pos) const {
    return (kv_pos >= lo && kv_pos < hi) || kv_pos < sink;
  }
  HEDDLE_DEVICE bool contains_all(int begin, int end) const {
    return (begin >= lo && end <= hi) || end <= sink;
  }
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

// What some row of the tile sees, given its first and last token's positions. Bounds grow with
// q_pos, so the two ends decide.
HEDDLE_DEVICE KeyRange seen_by_some(const MaskBounds& mask, int first, int last, int kv_len) {
  const KeyRange low = key_range(mask, first, kv_len), high = key_range(mask, last, kv_len);
  return {low.lo, high.hi, high.sink};
}
HEDDLE_DEVICE KeyRange seen_by_all(const MaskBounds& mask, int first, int last, int kv_len) {
  const KeyRange low = key_range(mask, first, kv_len), high = key_range(mask, last, kv_len);
  return {high.lo, low.hi, low.sink};
}

// Position of the first key of visited tile t.
template <int kTileKv>
HEDDLE_DEVICE int tile_start(const WorkItem& item, int t) {
  return (t >= item.gap_begin ? t + item.gap_tiles : t) * kTileKv;
}

// Steps through every (item, kv head, KV tile) of a CTA in the order in which they are computed.
template <int kTileKv, int kGroup>
class LoadCursor {
 public:
  HEDDLE_DEVICE explicit LoadCursor(const WorkList& work)
      : items_(work.items), requests_(work.requests), mask_(&work.header->mask), next_item_(work.begin), end_(work.end) {
    enter_next_item();
  }
  HEDDLE_DEVICE bool done() const { return done_; }
  HEDDLE_DEVICE int start() const { return tile_start<kTileKv>(item_, tile_); }
  HEDDLE_DEVICE int kv_head() const { return kv_head_; }
  HEDDLE_DEVICE int64_t kv_offset() const { return request_.kv_offset; }
  // Keys that no row of the tile sees are not read at all.
  HEDDLE_DEVICE bool visible(int kv_pos) const { return seen_.contains(kv_pos); }

  HEDDLE_DEVICE void advance() {
    if (++tile_ < item_.tile_end) return;
    tile_ = item_.tile_begin;
    if (++kv_head_ < item_.kv_head_end) return;
    enter_next_item();
  }

 private:
  HEDDLE_DEVICE void enter_next_item() {
    do {  // items without a visible tile load nothing
      if (next_item_ >= end_) {
        done_ = true;
        return;
      }
      item_ = items_[next_item_++];
    } while (item_.tile_begin >= item_.tile_end);
    done_ = false;
    request_ = requests_[item_.request];
    tile_ = item_.tile_begin;
    kv_head_ = item_.kv_head_begin;
    const int base = request_.kv_len - request_.qo_len;
    const int first = base + item_.row_begin / kGroup;
    const int last = base + (item_.row_begin + item_.num_rows - 1) / kGroup;
    seen_ = seen_by_some(*mask_, first, last, request_.kv_len);
  }

  // Own copies: a reference to a sibling member would keep the whole kernel state in local memory.
  const WorkItem* items_;
  const RequestRecord* requests_;
  const MaskBounds* mask_;
  WorkItem item_;
  RequestRecord request_;
  KeyRange seen_;
  int next_item_, end_, kv_head_, tile_;
  bool done_;
};

// Where K and V rows lie. A row id is a page id, or nothing when ragged.
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
