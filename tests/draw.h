// What random problems of all kinds draw and lay out.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "tools/device_memory.h"
#include "tools/random.h"

namespace heddle_tests {

using heddle::tools::pick;

// A stride, in elements: tight, or padded by a little.
inline std::int64_t spread(heddle::tools::Random& random, std::int64_t tight) { return tight + 8 * random.below(3); }

template <class T>
heddle::tools::DeviceMemory upload(const heddle::Engine& engine, const std::vector<T>& host) {
  heddle::tools::DeviceMemory memory(engine, std::max<std::size_t>(16, host.size() * sizeof(T)));
  memory.write(0, std::as_bytes(std::span(host)));
  return memory;
}

}  // namespace heddle_tests
