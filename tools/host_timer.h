// Times work on the host.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "tools/gpu_timer.h"

namespace heddle::tools {

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Microseconds of work(), the median of that many; before each comes settle(), which is not timed.
inline double median_us(int samples, const std::function<void()>& settle,
                        const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    settle();
    times.push_back(seconds_of(work) * 1e6);
  }
  return median(times);
}

}  // namespace heddle::tools
