// What the host pays: plan() and run() in a serving loop, and Engine::attention() when a model is
// loaded, with its kernel in memory, on disk, or nowhere.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/bench_data.h"

namespace heddle::tools {

struct HostCost {
  std::string cost;
  double us = 0;  // median
  std::string about;
  std::string not_run;  // why; `us` is then 0
};

std::vector<HostCost> measure_host(Engine& engine, RandomBlocks& blocks);

std::string host_table(const std::vector<HostCost>& costs);
nlohmann::ordered_json host_json(const std::vector<HostCost>& costs);

}  // namespace heddle::tools
