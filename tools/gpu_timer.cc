#include "tools/gpu_timer.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace heddle::tools {
namespace {

// What ran before must not show: an H200 that has just been busy for 50 ms, be it with a check, is held back by its
// power limit, and the same prefill then takes 10 to 15 % longer, a decode of one long request 13 %.
constexpr std::chrono::milliseconds kRest{300};

}  // namespace

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
  std::this_thread::sleep_for(kRest);
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
