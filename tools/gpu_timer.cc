#include "tools/gpu_timer.h"

#include <algorithm>

namespace heddle::tools {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TimedGraph::TimedGraph(const std::vector<std::function<void(Stream)>>& calls)
    : num_calls_(calls.size()) {
  for (const auto& call : calls) call(stream());
  stream_.synchronize();
  Graph::begin_capture(stream());
  for (const auto& call : calls) call(stream());
  graph_ = Graph::end_capture(stream());
}

void TimedGraph::replay() const {
  graph_.launch(stream());
  stream_.synchronize();
}

double TimedGraph::us(int replays) const {
  const EventHandle begin = EventHandle::create(true), end = EventHandle::create(true);
  replay();
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    begin.record(stream());
    graph_.launch(stream());
    end.record(stream());
    end.synchronize();
    times.push_back(elapsed_ms(begin, end) * 1e3 / double(num_calls_));
  }
  return median(times);
}

double graph_us(const std::vector<std::function<void(Stream)>>& calls, int replays) {
  return TimedGraph(calls).us(replays);
}

}  // namespace heddle::tools
