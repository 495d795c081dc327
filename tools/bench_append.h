// What append_kv costs, beside a plain copy of the device: both read and write every byte once.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/engine.h"

namespace heddle::tools {

struct AppendRow {
  std::string name;     // "append_kv_8k"
  std::string not_run;  // why; the figures are then empty
  double us = 0;        // one call, a layer's new rows
  double bytes = 0;     // that it must read and write
  double tbps = 0;
};

struct AppendTable {
  double copy_tbps = 0;  // read and written bytes of a copy of 1 GiB; 0 on the CPU device
  std::vector<AppendRow> rows;
  bool all_ran() const;
};

// 8192 new tokens of one request, and one of each of 64 requests; 8 kv heads of 128, page 16; stored as
// they are, and turned by `rope`. Each is checked before it is timed.
AppendTable measure_append(Engine& engine);

std::string append_table(const AppendTable& table);
nlohmann::ordered_json append_json(const AppendTable& table);

}  // namespace heddle::tools
