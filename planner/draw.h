// Draws a work list.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "planner/plan.h"

namespace heddle {

// One SVG: a panel for each pipeline that has work, CTAs down, cost across, a colour for each
// request, pieces of cut streams hatched; a legend of the most costly requests.
std::string draw_svg(const PlanConfig& config, std::span<const std::byte> plan);

}  // namespace heddle
