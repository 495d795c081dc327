// Times work on the GPU as the peers are timed: several calls, each on its own layer's data, in
// one captured graph; the median of a few replays.
#pragma once

#include <functional>
#include <vector>

#include "engine/types.h"
#include "runtime/driver.h"

namespace heddle::tools {

class TimedGraph {
 public:
  // Makes the calls once outside the graph, then captures them.
  explicit TimedGraph(const std::vector<std::function<void(Stream)>>& calls);

  Stream stream() const { return stream_.get(); }
  void replay() const;           // waits for its end
  double us(int replays) const;  // microseconds of one call

 private:
  StreamHandle stream_ = StreamHandle::create();
  std::size_t num_calls_;
  Graph graph_;
};

// Microseconds of one call.
double graph_us(const std::vector<std::function<void(Stream)>>& calls, int replays = 7);

double median(std::vector<double> values);  // 0 where there is none

}  // namespace heddle::tools
