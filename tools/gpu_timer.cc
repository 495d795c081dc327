#include "tools/gpu_timer.h"

#include <algorithm>

#include "runtime/driver.h"

namespace heddle::tools {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double graph_us(const std::vector<std::function<void(Stream)>>& calls, int replays) {
  const StreamHandle stream = StreamHandle::create();
  for (const auto& call : calls) call(stream.get());
  stream.synchronize();
  Graph::begin_capture(stream.get());
  for (const auto& call : calls) call(stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  graph.launch(stream.get());
  stream.synchronize();

  const EventHandle begin = EventHandle::create(true), end = EventHandle::create(true);
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    begin.record(stream.get());
    graph.launch(stream.get());
    end.record(stream.get());
    end.synchronize();
    times.push_back(elapsed_ms(begin, end) * 1e3 / double(calls.size()));
  }
  return median(times);
}

}  // namespace heddle::tools
