// What a captured graph costs whose workspace was made for more requests than the step has.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/bench_data.h"

namespace heddle::tools {

struct MaximaRow {
  int max_requests = 0;
  double us = 0;   // one run() of the replayed graph
  double err = 0;  // largest error on the sampled rows
};

struct GraphMaxima {
  std::string not_run;          // why; the rest is then empty
  std::vector<MaximaRow> rows;  // maxima of 8 requests, then of 256
  double ratio = 0;             // of the second's time to the first's
};

// Both graphs replay one plan for 8 requests of 4096 keys; the second was captured while 256
// requests were planned.
GraphMaxima measure_graph_maxima(Engine& engine, RandomBlocks& blocks);

std::string graph_maxima_table(const GraphMaxima& maxima);
nlohmann::ordered_json graph_maxima_json(const GraphMaxima& maxima);

}  // namespace heddle::tools
