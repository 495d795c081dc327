// The contiguous equal-cost split: all streams of a pipeline in a row, cut into one piece a CTA.
//
// No CTA gets more than a budget; the budget is the smallest at which all CTAs together hold
// everything. A CTA whose budget ends inside a stream leaves the rest to the next CTA, so each of
// the num_ctas - 1 borders cuts at most one stream: at most one partial state and one join a CTA.
// Pieces shorter than the time that they cost are not cut off.
#pragma once

#include <cstdint>
#include <span>

#include "planner/line.h"
#include "planner/plan.h"
#include "planner/streams.h"

namespace heddle {

// Where a split writes; all of it has room for plan_bounds (layout.h).
struct SplitOutput {
  std::int32_t* cta_begin;  // [num_ctas + 1]
  WorkItem* items;
  std::span<WorkItem> scratch;  // as many as items
};

// Lists items [begin, end), whole ones of one request, head by head (streams.h says why); returns
// where they end then.
int list_by_head(WorkItem* items, int begin, int end, int num_heads, std::span<WorkItem> scratch);

struct SplitResult {
  int items = 0;
  int partials = 0;
  int joins = 0;               // cut streams
  double max_over_mean = 1.0;  // of the cost over all CTAs; 1 where there is no work
  std::int64_t busiest = 0;    // CTA's cost, in LineCost's units
};

// A CTA publishes at most one partial state: that of the stream which its share ends in. `num_heads`: of the model.
SplitResult split_evenly(const Line& line, int num_heads, const SplitOutput& out);

}  // namespace heddle
