// The line t = fixed + bytes / bandwidth through measured times: what a row of a growing table is
// held against to see whether it steps out.
#pragma once

#include <span>

namespace heddle::tools {

struct TimedBytes {
  double bytes = 0, us = 0;
};

struct SmoothLine {
  double fixed_us = 0;
  double us_per_byte = 0;
  double us_at(double bytes) const { return fixed_us + us_per_byte * bytes; }
};

// The best one by the squares of log(time / line), so that every row counts alike. All zero where
// there are fewer than three rows: two lie on a line always.
SmoothLine fit_line(std::span<const TimedBytes> rows);

}  // namespace heddle::tools
