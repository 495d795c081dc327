// The cost model as the splits count it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/plan.h"

namespace heddle {

// Costs in fixed point, a KV tile being 1 << kTileShift: integers give the same plan on every
// machine, and the tiles that fit into a budget are a shift instead of a division.
struct LineCost {
  static constexpr int kTileShift = 10;
  std::int64_t per_item;  // at least 1: even an empty stream counts, and can be divided by
  std::int64_t per_partial;

  explicit LineCost(const CostModel& model)
      : per_item(std::max<std::int64_t>(fixed(model.per_item / model.per_tile), 1)),
        per_partial(fixed(model.per_partial / model.per_tile)) {}

  static std::int64_t fixed(double tiles) {
    return static_cast<std::int64_t>(tiles * (1 << kTileShift) + 0.5);
  }
  static constexpr std::int64_t of_tiles(std::int64_t tiles) { return tiles << kTileShift; }
  std::int64_t whole(std::int64_t tiles) const { return per_item + of_tiles(tiles); }
  std::int64_t part(std::int64_t tiles) const { return per_item + per_partial + of_tiles(tiles); }
};

}  // namespace heddle
