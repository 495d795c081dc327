// The search for the smallest budget a CTA at which a line of streams fits on its CTAs. What is
// laid, and where it may be cut, is the caller's: he prices a budget.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/line_cost.h"

namespace heddle {

// What CTAs come to, one after the other, in LineCost's units.
struct Load {
  std::int64_t current = 0;  // of the open CTA
  std::int64_t busiest = 0;
  std::int64_t total = 0;

  void close_cta() {
    busiest = std::max(busiest, current);
    total += current;
    current = 0;
  }
  // Close enough to even that another walk over the line would cost more than it gains.
  bool is_even(int num_ctas) const { return busiest * num_ctas <= total + total / 100; }
  double max_over_mean(int num_ctas) const {
    return total > 0 ? static_cast<double>(busiest) * num_ctas / static_cast<double>(total) : 1.0;
  }
};

// The smallest budget that holds the line, to half a tile or 1 / 2^precision; none below `floor`
// does. `load` is what the budget `tried` came to; price(budget) gives that of another one. A line
// that does not fit overloads its last CTA.
template <typename Price>
std::int64_t search_budget(int num_ctas, std::int64_t floor, std::int64_t tried, Load load,
                           int precision, const Price& price) {
  constexpr std::int64_t kHalfTile = LineCost::of_tiles(1) / 2;
  std::int64_t low = floor, high = tried;
  while (load.busiest > high) {
    low = high;
    high += (load.busiest - high) / num_ctas + high / 256 + kHalfTile;
    load = price(high);
  }
  high = load.busiest;
  // What the streams really cost is the best next guess: uncut ones cost less than assumed.
  std::int64_t middle = load.total / num_ctas + kHalfTile;
  while (!load.is_even(num_ctas) && high - low > std::max(kHalfTile, high >> precision)) {
    if (middle <= low || middle >= high) middle = low + (high - low) / 2;
    const Load probe = price(middle);
    if (probe.busiest > middle) {
      low = middle;
    } else {
      high = probe.busiest;
      load = probe;
    }
    middle = low + (high - low) / 2;
  }
  return high;
}

}  // namespace heddle
