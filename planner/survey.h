// A batch at a glance: one pass without branches, which most batches need to be accepted. Where it
// says no, check_batch.cc goes through the rules one by one to say why.
#pragma once

#include <cstdint>

#include "planner/check_batch.h"

namespace heddle {

// Unsigned where a batch that breaks a rule may overflow.
struct Survey {
  bool in_order = true;  // both indptr, and each request's own figures
  std::uint32_t max_qo_len = 0;
  std::int64_t max_kv_len = 0;
  std::uint64_t kv_tokens = 0;

  // Whether every rule holds.
  bool allows(const PlanConfig& config, const Maxima& maxima, const CheckedBatch& checked) const;
};

// The arrays must have the sizes that the batch's form asks for.
Survey survey(const CheckedBatch& checked);

}  // namespace heddle
