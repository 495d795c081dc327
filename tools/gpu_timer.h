// Times work on the GPU as the peers are timed: several calls, each on its own layer's data, in
// one captured graph; the median of a few replays.
#pragma once

#include <functional>
#include <vector>

#include "engine/types.h"

namespace heddle::tools {

// Microseconds of one call. Calls are first made once outside the graph.
double graph_us(const std::vector<std::function<void(Stream)>>& calls, int replays = 7);

double median(std::vector<double> values);  // 0 where there is none

}  // namespace heddle::tools
