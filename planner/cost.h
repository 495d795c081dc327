// The cost model's price of what stands in a plan, for explain, draw and tests. (The split itself
// counts in fixed point: line.h.)
#pragma once

#include <vector>

#include "planner/plan.h"
#include "planner/plan_view.h"

namespace heddle {

inline double cost_of(const PipelineShape& shape, const WorkItem& item) {
  const double stream = shape.cost.per_item + shape.cost.per_tile * (item.tile_end - item.tile_begin);
  return stream * (item.kv_head_end - item.kv_head_begin) / shape.heads_abreast +
         (item.partial >= 0 ? shape.cost.per_partial : 0.0);
}

// What each CTA has to do.
inline std::vector<double> cta_costs(const PipelineShape& shape, const PlanView::Section& section) {
  std::vector<double> costs(static_cast<std::size_t>(section.num_ctas()));
  for (int cta = 0; cta < section.num_ctas(); ++cta) {
    for (const WorkItem& item : section.items_of(cta))
      costs[static_cast<std::size_t>(cta)] += cost_of(shape, item);
  }
  return costs;
}

}  // namespace heddle
