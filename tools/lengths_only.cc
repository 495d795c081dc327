#include "tools/lengths_only.h"

#include <algorithm>

#include "engine/error.h"

namespace heddle::tools {

LengthsOnly::LengthsOnly(const std::vector<std::int32_t>& qo_lens,
                         const std::vector<std::int32_t>& kv_lens, int page_size) {
  std::int64_t rows = 0, entries = 0;
  for (std::size_t r = 0; r < kv_lens.size(); ++r) {
    rows += qo_lens[r];
    kv_tokens += kv_lens[r];
    entries += page_size ? (kv_lens[r] + std::int64_t{page_size} - 1) / page_size : kv_lens[r];
    if (std::max(rows, entries) > INT32_MAX) {
      fail(ErrorKind::invalid_argument,
           "Up to request {} the batch has {} query rows and {} pages; each total must "
           "stay below 2^31.",
           r, rows, entries);
    }
    qo_indptr.push_back(std::int32_t(rows));
    kv_indptr.push_back(std::int32_t(entries));
    if (page_size) last_page_len.push_back(kv_lens[r] ? (kv_lens[r] - 1) % page_size + 1 : 0);
  }
}

}  // namespace heddle::tools
