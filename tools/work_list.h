// Reads a plan's bytes back into records, for `plan --svg` and whoever wants to look at one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "planner/plan.h"
#include "templates/abi.h"

namespace heddle::tools {

// The records of one pipeline, in place.
struct WorkList {
  std::span<const std::int32_t> cta_begin;  // [num_ctas + 1]
  std::span<const WorkItem> items;
  std::span<const MergeRecord> merges;
  int num_ctas() const { return cta_begin.empty() ? 0 : int(cta_begin.size()) - 1; }
};

const PlanHeader& header_of(std::span<const std::byte> plan);
std::span<const RequestRecord> requests_of(std::span<const std::byte> plan);
WorkList work_list_of(std::span<const std::byte> plan, Pipeline pipeline);

}  // namespace heddle::tools
