// How time grows with the batch and with the length: powers of two, each checked, and each held
// against the smooth line through the table.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/bench_case.h"
#include "tools/progress.h"
#include "tools/smooth_line.h"

namespace heddle::tools {

struct GrowthRow {
  int batch = 0, kv_len = 0;
  BenchRow row;
  // Above 1 where it took longer than the line through all rows, or than the line between its two
  // neighbours; 0 where there is none.
  double of_line = 0, of_neighbours = 0;
};

struct Growth {
  std::string over;  // "batch" or "kv_len"
  SmoothLine line;
  std::vector<GrowthRow> rows;
};

// Decode of 32/8 heads, head_dim 128, page 16, bf16: batch 1 to 1024 at 2048 keys, and 128 to 1M
// keys at batch 1. Rows of more than `most_keys` keys are left out.
std::vector<Growth> growth_rows(std::int64_t most_keys);
void measure_growth(Engine& engine, RandomBlocks& blocks, Growth& growth, Progress& progress);

std::string growth_table(const Growth& growth, const Ceilings& ceilings);
nlohmann::ordered_json growth_json(const Growth& growth, const Ceilings& ceilings);

}  // namespace heddle::tools
