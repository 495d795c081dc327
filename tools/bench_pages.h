// Which pages a workload's requests have: each its own, some in common, or all drawn from one pool.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lengths_only.h"
#include "tools/workload.h"

namespace heddle::tools {

struct PageTable {
  std::vector<std::int32_t> ids;   // as kv_indices holds them, in no order; of ragged K/V every row's own
  std::int64_t num_pages = 0;      // rows where ragged
};

PageTable page_table(const Workload& workload, const LengthsOnly& lengths);

}  // namespace heddle::tools
