// Draws a work list: CTAs down, time across, a colour for each request.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "planner/plan.h"

namespace heddle::tools {

std::string plan_svg(std::span<const std::byte> plan, const PlanConfig& config);

}  // namespace heddle::tools
