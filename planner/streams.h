// Streams: the units that a split lays in a row. A stream is one (request, query tile, kv head), or as many kv heads as
// the pipeline reads abreast; then heads are counted in such bundles until the plan is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "planner/plan.h"
#include "planner/row_keys.h"
#include "planner/visible.h"

namespace heddle {

// All streams of one (request, query tile): one for each kv head, over the same KV tiles. Kept as
// the item that it becomes where nothing is cut, so that writing one is a copy of 64 bytes.
struct StreamRun {
  WorkItem item;
  std::int32_t num_tiles() const { return item.tile_end - item.tile_begin; }  // 0: no key is seen
  std::int32_t num_heads() const { return item.kv_head_end - item.kv_head_begin; }
};

// Writes the item that covers these heads and visited tiles of a run.
inline void write_item(WorkItem& to, const StreamRun& run, std::int32_t head_begin,
                       std::int32_t head_end, std::int32_t tile_begin, std::int32_t tile_end) {
  to = run.item;
  to.kv_head_begin = head_begin;
  to.kv_head_end = head_end;
  to.tile_begin = tile_begin;
  to.tile_end = tile_end;
}

// Which pipeline runs a request of that many query rows.
inline Pipeline pipeline_of(const PlanConfig& config, std::int64_t qo_len) {
  const bool fits =
      config.of(Pipeline::decode).present && qo_len * config.group <= config.max_decode_rows;
  return fits ? Pipeline::decode : Pipeline::append;
}

// Fills one pipeline's runs, in the order in which they are cut.
class StreamList {
 public:
  // `row_keys`: of all query rows, where the batch gives them; else null, and the mask decides.
  StreamList(const PlanConfig& config, Pipeline pipeline, const MaskBounds& mask, const RowKeys* row_keys,
             std::span<StreamRun> room)
      : group_(config.group),
        num_heads_(config.heads_apart(pipeline)),
        tile_rows_(config.of(pipeline).tile_rows),
        tile_kv_(config.of(pipeline).tile_kv),
        visible_(mask, config.of(pipeline).tile_kv),
        row_keys_(row_keys),
        room_(room) {}

  struct Request {
    std::int64_t kv_offset;
    std::int32_t number, qo_begin, qo_len, kv_len;
    std::int32_t prefix_states = 0;  // of the keys in front of kv_offset, which it shares with others
  };

  // Lists the query tiles of a request.
  //
  // A request's tiles lie together and all heads of a tile side by side, so a CTA's share is a
  // few neighbouring query tiles for every head; it then works head by head (split.h), and what one
  // tile has read the next one finds in L2. (Many tiles of a request are dealt: deal.h.) The last
  // tile comes first: under a causal mask it is the longest, and the short ones at the end let the
  // cuts fall between streams.
  void add(const Request& request) {
    const std::int32_t rows = request.qo_len * group_;
    if (rows <= tile_rows_)
      add_tile(request, 0, rows, 0, request.qo_len);
    else
      add_tiles(request, rows);
  }

  // Lists a part of a shared prefix (prefix_parts.h): `keys` whole tiles, all of which every row sees. Its rows are those
  // of all its requests, one behind the other; they stand behind its keys, so no mask touches them.
  void add_prefix(const Request& request, std::int32_t keys) {
    const std::size_t first = size_;
    add(request);
    for (StreamRun& run : room_.subspan(first, size_ - first)) {
      run.item.tile_begin = 0;
      run.item.tile_end = keys / tile_kv_;
    }
  }

  std::span<const StreamRun> runs() const { return room_.first(size_); }
  std::int32_t most_tiles() const { return most_tiles_; }  // of one request

 private:
  void add_tiles(const Request& request, std::int32_t rows) {
    const std::int32_t last = (rows - 1) / tile_rows_;
    most_tiles_ = std::max(most_tiles_, last + 1);
    for (std::int32_t t = last; t >= 0; --t) {
      const std::int32_t begin = t * tile_rows_, end = std::min(begin + tile_rows_, rows);
      add_tile(request, begin, end - begin, begin / group_, (end - 1) / group_ + 1);
    }
  }

  VisibleTiles visible_tiles(const Request& request, std::int32_t token_begin, std::int32_t token_end) const {
    if (row_keys_ == nullptr) return visible_.of(request.qo_len, request.kv_len, token_begin, token_end);
    const RowKeys* const rows = row_keys_ + request.qo_begin;
    const RowKeys seen = seen_by_some({rows + token_begin, rows + token_end}, request.kv_len);
    return visible_.of_keys(seen.begin, seen.end);
  }

  void add_tile(const Request& request, std::int32_t row_begin, std::int32_t num_rows,
                std::int32_t token_begin, std::int32_t token_end) {
    const VisibleTiles tiles = visible_tiles(request, token_begin, token_end);
    WorkItem& item = room_[size_++].item;
    item.kv_offset = request.kv_offset;
    item.request = request.number;
    item.qo_begin = request.qo_begin;
    item.qo_len = request.qo_len;
    item.kv_len = request.kv_len;
    item.row_begin = row_begin;
    item.num_rows = static_cast<std::int16_t>(num_rows);
    item.prefix_states = static_cast<std::int16_t>(request.prefix_states);
    item.kv_head_begin = 0;
    item.kv_head_end = num_heads_;
    item.tile_begin = tiles.tile_begin;
    item.tile_end = tiles.tile_begin + tiles.num_tiles;
    item.gap_begin = tiles.gap_begin;
    item.gap_tiles = tiles.gap_tiles;
    item.partial = -1;
    item.join = 0;
  }

  std::int32_t group_, num_heads_, tile_rows_, tile_kv_;
  VisibleKeys visible_;
  const RowKeys* row_keys_;
  std::span<StreamRun> room_;
  std::size_t size_ = 0;
  std::int32_t most_tiles_ = 1;
};

}  // namespace heddle
