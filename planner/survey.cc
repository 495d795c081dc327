#include "planner/survey.h"

#include <algorithm>

namespace heddle {
namespace {

template <KvForm kForm>
Survey survey_of(const CheckedBatch& checked) {
  const Batch& batch = checked.batch;
  const std::int64_t page_size = checked.page_size;
  Survey seen;
  bool broken = batch.qo_indptr[0] != 0 || (kForm != KvForm::table && batch.kv_indptr[0] != 0);
  for (int r = 0; r < checked.num_requests; ++r) {
    const std::int32_t qo_begin = batch.qo_indptr[r], qo_end = batch.qo_indptr[r + 1];
    broken |= qo_end < qo_begin;
    seen.max_qo_len = std::max(
        seen.max_qo_len, static_cast<std::uint32_t>(qo_end) - static_cast<std::uint32_t>(qo_begin));
    std::int64_t kv_len;
    if constexpr (kForm == KvForm::table) {
      kv_len = batch.kv_lens[r];
    } else {
      kv_len = std::int64_t{batch.kv_indptr[r + 1]} - batch.kv_indptr[r];
    }
    broken |= kv_len < 0;
    if constexpr (kForm == KvForm::pages) {
      // Without a page 0 keys of the last one, else 1 .. page_size.
      const std::int64_t last = batch.last_page_len[r], has_page = kv_len != 0;
      broken |= last < has_page || last > page_size * has_page;
      kv_len = (kv_len - has_page) * page_size + last;
    }
    seen.max_kv_len = std::max(seen.max_kv_len, kv_len);
    seen.kv_tokens += static_cast<std::uint64_t>(kv_len);
  }
  seen.in_order = !broken;
  return seen;
}

// The most query rows that a request may have.
std::int64_t longest_qo(const PlanConfig& config, const Maxima& maxima) {
  std::int64_t longest = kMaxRows / config.group;
  if (!config.of(Pipeline::append).present)
    longest = std::min<std::int64_t>(longest, config.max_decode_rows / config.group);
  return maxima.max_qo_len > 0 ? std::min<std::int64_t>(longest, maxima.max_qo_len) : longest;
}

}  // namespace

Survey survey(const CheckedBatch& checked) {
  switch (checked.form) {
    case KvForm::pages:
      return survey_of<KvForm::pages>(checked);
    case KvForm::table:
      return survey_of<KvForm::table>(checked);
    case KvForm::ragged:
      break;
  }
  return survey_of<KvForm::ragged>(checked);
}

bool Survey::allows(const PlanConfig& config, const Maxima& maxima,
                    const CheckedBatch& checked) const {
  const std::int64_t pages_of_longest =
      checked.form == KvForm::table ? (max_kv_len + config.page_size - 1) / config.page_size : 0;
  return in_order && max_qo_len <= longest_qo(config, maxima) && max_kv_len <= kMaxKvLen &&
         pages_of_longest <= checked.batch.kv_table_stride && checked.batch.kv_table_stride >= 0 &&
         checked.batch.kv_table_stride <= kMaxTableStride &&
         checked.num_qo_rows() <= maxima.max_qo_rows &&
         kv_tokens <= static_cast<std::uint64_t>(maxima.max_kv_tokens);
}

}  // namespace heddle
