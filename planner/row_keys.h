// Ranges of keys that a batch gives to its rows: checked, joined with the declared mask, and written into the plan.
//
// Packed documents, a bidirectional prefix, image spans: what a row sees is one range of keys, and the caller knows it
// on the host. With it the planner visits just the tiles between the first and the last key that some row of a query
// tile sees, so that its balance is as exact as a causal mask's, and kernels run mask code where a row's range begins
// or ends. (A free mask says the same in a hook, which no planner can read: every tile is visited and asked.)
//
// What is written is the AND with the declared mask, row by row. So kernels need no mask beside it, and a union over
// rows is that of what they really see.
#pragma once

#include <algorithm>
#include <span>

#include "planner/check_batch.h"
#include "planner/plan.h"

namespace heddle {

// Refuses ranges that are missing, of the wrong number or out of their request, and ranges that nobody asked for.
void check_row_keys(const PlanConfig& config, const CheckedBatch& checked, const MaskBounds& mask);

// Writes a record for every query row. Returns the first one. Requires: checked.
const RowKeys* write_row_keys(const CheckedBatch& checked, const MaskBounds& mask, RowKeys* to);

// From the first to the last key that some of these rows see; kv_len to 0 where there is none.
inline RowKeys seen_by_some(std::span<const RowKeys> rows, std::int32_t kv_len) {
  RowKeys seen{kv_len, 0};
  for (const RowKeys& row : rows) {
    seen.begin = std::min(seen.begin, row.begin);
    seen.end = std::max(seen.end, row.end);
  }
  return seen;
}

}  // namespace heddle
