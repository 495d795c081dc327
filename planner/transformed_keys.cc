#include "planner/transformed_keys.h"

#include <algorithm>
#include <span>

#include "planner/layout.h"
#include "planner/streams.h"

namespace heddle {
namespace {

// Whether several query tiles read a request's keys.
bool gains(const PlanConfig& config, std::int32_t qo_len) {
  return pipeline_of(config, qo_len) == Pipeline::append &&
         std::int64_t{qo_len} * config.group > config.of(Pipeline::append).tile_rows;
}

// The first key that some row sees; from there on each is seen by some row. kv_len where sinks and the window lie apart:
// what is between must not be read, and such requests are not worth two ranges.
std::int32_t first_key(const MaskBounds& mask, std::int32_t qo_len, std::int32_t kv_len) {
  if (mask.window_left == kUnbounded) return 0;
  const std::int64_t first_pos = std::int64_t{kv_len} - qo_len;
  const auto first = static_cast<std::int32_t>(std::clamp<std::int64_t>(first_pos - mask.window_left, 0, kv_len));
  if (mask.sink == 0) return first;
  return mask.sink >= first ? 0 : kv_len;
}

}  // namespace

TransformedKeysPlan write_transformed_keys(const PlanConfig& config, const CheckedBatch& batch, const MaskBounds& mask,
                                           std::int64_t room, std::byte* to) {
  TransformedKeysPlan plan;
  if (room == 0) return plan;
  auto* const records = reinterpret_cast<TransformedKeys*>(to);
  for (int r = 0; r < batch.num_requests; ++r) {
    const std::int32_t qo_len = batch.qo_len(r), kv_len = batch.kv_len(r);
    if (!gains(config, qo_len)) continue;
    const std::int32_t begin = first_key(mask, qo_len, kv_len);
    if (begin == kv_len || plan.num_keys + (kv_len - begin) > room) continue;
    records[plan.num_requests++] = {batch.kv_offset(r), r, qo_len, kv_len, static_cast<std::int32_t>(plan.num_keys),
                                    begin, kv_len};
    plan.num_keys += kv_len - begin;
  }
  if (plan.num_requests == 0) return plan;
  plan.key_row_offset = sizeof(TransformedKeys) * static_cast<std::size_t>(plan.num_requests);
  auto* const key_rows = reinterpret_cast<std::int32_t*>(to + plan.key_row_offset);
  std::fill_n(key_rows, batch.num_requests, kNoKeyRow);
  for (const TransformedKeys& keys : std::span(records, static_cast<std::size_t>(plan.num_requests)))
    key_rows[keys.request] = keys.row - keys.key_begin;
  plan.bytes = plan.key_row_offset + sizeof(std::int32_t) * static_cast<std::size_t>(batch.num_requests);
  return plan;
}

}  // namespace heddle
