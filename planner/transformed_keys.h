// Whose keys are transformed ahead of append, and where they go.
//
// A key_transform (RoPE on keys in pages, an RMS norm of them) is work for every key of every query tile that reads it:
// of a prompt of 16k tokens with 4 heads to a group, 256 times on average. Done once a run into the workspace it costs
// a read and a write of the keys. So every request with more than one query tile gets room, in the order of the
// batch, as long as its keys fit; the others are transformed as they are read, where that is one time or two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/check_batch.h"
#include "planner/plan.h"

namespace heddle {

struct TransformedKeysPlan {
  std::int32_t num_requests = 0;  // that have keys there
  std::int64_t num_keys = 0;
  std::size_t key_row_offset = 0;  // from the first record
  std::size_t bytes = 0;           // 0 where there are none
};

// Writes records, and behind them the row of every request's key 0, into `to`, which has transformed_keys_bytes() of
// the batch's requests. `room` is how many keys there is room for.
TransformedKeysPlan write_transformed_keys(const PlanConfig& config, const CheckedBatch& batch, const MaskBounds& mask,
                                           std::int64_t room, std::byte* to);

}  // namespace heddle
