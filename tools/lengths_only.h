// The batch of a plan without any page: only the lengths matter.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan.h"

namespace heddle::tools {

struct LengthsOnly {
  std::vector<std::int32_t> qo_indptr{0}, kv_indptr{0}, last_page_len;
  std::int64_t kv_tokens = 0;

  // Throws where the totals are past 32 bits.
  LengthsOnly(const std::vector<std::int32_t>& qo_lens, const std::vector<std::int32_t>& kv_lens,
              int page_size);
  Batch batch() const {
    return {.qo_indptr = qo_indptr, .kv_indptr = kv_indptr, .last_page_len = last_page_len};
  }
};

}  // namespace heddle::tools
