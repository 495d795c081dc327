// Tells people how a request was cut.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "planner/plan.h"

namespace heddle {

// A few sentences on one request of a plan: its pipeline, its tiles, what was cut and why.
// Throws Error where the plan has no such request.
std::string explain(const PlanConfig& config, std::span<const std::byte> plan, int request);

}  // namespace heddle
