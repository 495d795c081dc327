// Streams: the units that a split lays in a row. A stream is one (request, query tile, kv head).
#pragma once

#include <cstdint>
#include <span>

#include "planner/check_batch.h"
#include "planner/plan.h"

namespace heddle {

// All streams of one (request, query tile): one for each kv head, over the same KV tiles.
struct StreamRun {
  std::int32_t request;
  std::int32_t row_begin;  // first packed row of the query tile
  std::int32_t num_rows;
  std::int32_t tile_begin;  // visited KV tiles, as WorkItem counts them
  std::int32_t num_tiles;   // 0: the rows see no key
  std::int32_t gap_begin;
  std::int32_t gap_tiles;
};

// Which pipeline runs a request of that many query rows.
inline Pipeline pipeline_of(const PlanConfig& config, std::int64_t qo_len) {
  const bool fits =
      config.of(Pipeline::decode).present && qo_len * config.group <= config.max_decode_rows;
  return fits ? Pipeline::decode : Pipeline::append;
}

// Fills one pipeline's runs, in the order in which they are cut.
class StreamList {
 public:
  StreamList(const PlanConfig& config, Pipeline pipeline, std::span<StreamRun> room)
      : config_(config), shape_(config.of(pipeline)), room_(room) {}

  // Lists the query tiles of request r.
  //
  // A request's tiles lie together and all heads of a tile side by side, so a CTA's share is a
  // few neighbouring query tiles for every head; it then works head by head (split.h). Thus CTAs
  // that share a request go through its heads at the same pace, since each has the same cost to
  // spend on each head, and its K and V meet in L2 one head at a time (16k keys of 128 bf16: 8 MB
  // of the 67 MB that 8 heads take together). The last tile comes first: under a causal mask it is
  // the longest, and the short ones at the end let the cuts fall between streams.
  void add(const MaskBounds& mask, std::int32_t r, std::int32_t qo_len, std::int32_t kv_len);

  std::span<const StreamRun> runs() const { return room_.first(size_); }

 private:
  const PlanConfig& config_;
  const PipelineShape& shape_;
  std::span<StreamRun> room_;
  std::size_t size_ = 0;
};

}  // namespace heddle
