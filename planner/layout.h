// How large a plan and its workspace can get. Everything here follows from the config and the
// maxima alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/plan.h"

namespace heddle {

// Kernels read records as 16-byte vectors, so every section of a plan starts on one.
constexpr std::size_t align_record(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

// Most records of one pipeline that any batch within the maxima can need.
struct PlanBounds {
  std::int64_t runs = 0;  // (request, query tile)
  std::int64_t items = 0;
  std::int64_t merges = 0;
  std::int64_t partials = 0;
};

PlanBounds plan_bounds(const PlanConfig& config, const Maxima& maxima, Pipeline pipeline);

}  // namespace heddle
