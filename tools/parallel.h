// A loop over the machine's cores, for checks in double precision.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace heddle::tools {

// Calls work(0) .. work(count - 1), in any order. The first exception is thrown again at the end.
inline void parallel_for(int count, const std::function<void(int)>& work) {
  std::atomic<int> next = 0;
  std::exception_ptr failed;
  std::atomic<bool> has_failed = false;
  const auto loop = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        if (!has_failed.exchange(true)) failed = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> others;
  const int threads = std::min(count, std::max(1, int(std::thread::hardware_concurrency())));
  for (int i = 1; i < threads; ++i) others.emplace_back(loop);
  loop();
  others.clear();  // joins
  if (failed) std::rethrow_exception(failed);
}

}  // namespace heddle::tools
