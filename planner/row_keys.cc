#include "planner/row_keys.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "planner/refuse.h"

namespace heddle {
namespace {

void check_size(std::string_view name, std::span<const std::int32_t> keys, std::int64_t rows) {
  if (static_cast<std::int64_t>(keys.size()) == rows) return;
  refuse("{} has {} entries; this plan's mask has the rows' ranges given (\"rows\": \"given\"), so its batch of {} "
         "query rows needs {}.",
         name, keys.size(), rows, rows);
}

// One pass over signs, which compilers turn into vectors; check_request() says where. May also be false where an end lies
// 2^31 below kv_len.
bool is_within(const Batch& batch, std::int32_t begin, std::int32_t end, std::int32_t kv_len) {
  const std::int32_t *const first_keys = batch.first_keys.data(), *const end_keys = batch.end_keys.data();
  std::uint32_t signs = 0;
  for (std::int32_t row = begin; row < end; ++row)
    signs |= static_cast<std::uint32_t>(first_keys[row]) |
             (static_cast<std::uint32_t>(kv_len) - static_cast<std::uint32_t>(end_keys[row]));
  return signs >> 31 == 0;
}

void check_request(const CheckedBatch& checked, int r) {
  const std::int32_t begin = checked.qo_begin(r), end = begin + checked.qo_len(r), kv_len = checked.kv_len(r);
  const Batch& batch = checked.batch;
  if (is_within(batch, begin, end, kv_len)) return;
  for (std::int32_t row = begin; row < end; ++row) {
    if (batch.first_keys[row] < 0)
      refuse("Request {}: first_keys[{}], of its query row {}, is {}; it must not be negative.", r, row,
             row - begin, batch.first_keys[row]);
    if (batch.end_keys[row] > kv_len)
      refuse("Request {}: end_keys[{}], of its query row {}, is {}; it must be at most kv_len, {}.", r, row,
             row - begin, batch.end_keys[row], kv_len);
  }
}

// What the declared mask leaves of a request's rows: of row i, keys [begin + i, end + i).
struct Diagonal {
  std::int64_t begin, end;

  Diagonal(const MaskBounds& mask, std::int64_t qo_len, std::int64_t kv_len) {
    constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond all positions, whatever the row
    const std::int64_t first_pos = kv_len - qo_len;
    const std::int64_t right = mask.causal ? 0 : mask.window_right == kUnbounded ? kFar : mask.window_right;
    // Held to where all rows see what they would beyond: no row is more than qo_len from the first.
    begin = std::clamp(mask.window_left == kUnbounded ? -kFar : first_pos - mask.window_left, -qo_len, kv_len);
    end = std::clamp(first_pos + right + 1, -qo_len, kv_len);
  }
};

// `Number` holds kv_len + qo_len: as narrow as that allows, since a narrower one is two to four times as fast.
template <typename Number>
void write_rows(const CheckedBatch& checked, int r, const Diagonal& left, RowKeys* to) {
  const std::int32_t qo_begin = checked.qo_begin(r), qo_len = checked.qo_len(r), kv_len = checked.kv_len(r);
  const std::int32_t* const first_keys = checked.batch.first_keys.data() + qo_begin;
  const std::int32_t* const end_keys = checked.batch.end_keys.data() + qo_begin;
  RowKeys* const rows = to + qo_begin;
  const auto left_begin = static_cast<Number>(left.begin), left_end = static_cast<Number>(left.end);
  for (std::int32_t i = 0; i < qo_len; ++i) {
    const Number begin = std::max<Number>(first_keys[i], left_begin + i), end = std::min<Number>(end_keys[i], left_end + i);
    const bool sees_keys = begin < end;
    rows[i].begin = sees_keys ? static_cast<std::int32_t>(begin) : kv_len;
    rows[i].end = sees_keys ? static_cast<std::int32_t>(end) : 0;
  }
}

}  // namespace

void check_row_keys(const PlanConfig& config, const CheckedBatch& checked, const MaskBounds& mask) {
  const Batch& batch = checked.batch;
  if (!config.rows_given) {
    if (batch.first_keys.empty() && batch.end_keys.empty()) return;
    refuse(
        "The batch gives {} first_keys and {} end_keys, which only the plan of a mask with \"rows\": \"given\" reads.",
        batch.first_keys.size(), batch.end_keys.size());
  }
  if (mask.sink > 0)
    refuse(
        "The mask's sink is {}; where the rows' ranges are given it must be 0, as a row then sees one range of keys.",
        mask.sink);
  check_size("first_keys", batch.first_keys, checked.num_qo_rows());
  check_size("end_keys", batch.end_keys, checked.num_qo_rows());
  for (int r = 0; r < checked.num_requests; ++r) check_request(checked, r);
}

const RowKeys* write_row_keys(const CheckedBatch& checked, const MaskBounds& mask, RowKeys* to) {
  for (int r = 0; r < checked.num_requests; ++r) {
    const std::int64_t qo_len = checked.qo_len(r), kv_len = checked.kv_len(r);
    const Diagonal left(mask, qo_len, kv_len);
    if (kv_len + qo_len <= std::numeric_limits<std::int32_t>::max())
      write_rows<std::int32_t>(checked, r, left, to);
    else
      write_rows<std::int64_t>(checked, r, left, to);
  }
  return to;
}

}  // namespace heddle
