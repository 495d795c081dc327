#include "tools/smooth_line.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::tools {
namespace {

// Lines of one bend, that is bytes that take as long as the fixed part, differ by a factor only, so
// the best of them has the mean of the logs. `scale` becomes that factor.
double misfit(std::span<const TimedBytes> rows, double bend, double& scale) {
  double sum = 0, squares = 0;
  for (const TimedBytes& row : rows) {
    const double distance = std::log(row.us / (bend + row.bytes));
    sum += distance;
    squares += distance * distance;
  }
  const double mean = sum / double(rows.size());
  scale = std::exp(mean);
  return squares - double(rows.size()) * mean * mean;
}

}  // namespace

SmoothLine fit_line(std::span<const TimedBytes> rows) {
  if (rows.size() < 3) return {};
  double largest = 0;
  for (const TimedBytes& row : rows) largest = std::max(largest, row.bytes);
  // One valley is not promised, so every bend is looked at, in steps of a hundredth.
  double least = std::numeric_limits<double>::infinity();
  SmoothLine line;
  for (double bend = largest * 1e-7; bend < largest * 1e3; bend *= 1.01) {
    double scale = 0;
    const double found = misfit(rows, bend, scale);
    if (found >= least) continue;
    least = found;
    line = {.fixed_us = scale * bend, .us_per_byte = scale};
  }
  return line;
}

}  // namespace heddle::tools
