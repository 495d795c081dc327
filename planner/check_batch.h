// The edge of the room: configs, maxima, masks and batches are checked here, once. Every rule
// throws Error(invalid_argument) with one sentence; the rest of the room trusts what passed.
#pragma once

#include <cstdint>

#include "planner/plan.h"

namespace heddle {

// How a batch says where its keys are.
enum class KvForm { pages, table, ragged };

// A batch that has been checked; the lengths of its requests in one spelling.
struct CheckedBatch {
  const Batch& batch;
  KvForm form;
  int num_requests;
  int page_size;
  std::int64_t max_kv_len = 0;  // of one request

  std::int32_t qo_begin(int r) const { return batch.qo_indptr[r]; }
  std::int32_t qo_len(int r) const { return batch.qo_indptr[r + 1] - batch.qo_indptr[r]; }
  std::int32_t kv_len(int r) const {
    if (form == KvForm::table) return batch.kv_lens[r];
    const std::int32_t entries = batch.kv_indptr[r + 1] - batch.kv_indptr[r];
    if (form == KvForm::ragged || entries == 0) return entries;
    return (entries - 1) * page_size + batch.last_page_len[r];
  }
  std::int64_t kv_offset(int r) const {
    return form == KvForm::table ? r * batch.kv_table_stride : batch.kv_indptr[r];
  }

  std::int64_t num_qo_rows() const { return batch.qo_indptr[num_requests]; }
  // Entries of kv_indices, or ragged K/V rows, up to the last that any request reaches.
  std::int64_t num_kv_entries() const {
    if (form != KvForm::table) return batch.kv_indptr[num_requests];
    int r = num_requests - 1;
    while (r >= 0 && kv_len(r) == 0) --r;
    return r < 0 ? 0 : kv_offset(r) + (kv_len(r) - 1) / page_size + 1;
  }
};

// Longest request: positions, and a tile more than they need, stay within 32 bits on the device.
inline constexpr std::int64_t kMaxKvLen = 0x7fffffff - 0xffff;
// Most packed rows of a request, for the same reason.
inline constexpr std::int64_t kMaxRows = 0x7fffffff - 4096;
// Widest row of a dense page table: with the most requests that maxima may have, offsets stay within 64 bits.
inline constexpr std::int64_t kMaxTableStride = std::int64_t{1} << 38;

void check_config(const PlanConfig& config);
void check_maxima(const PlanConfig& config, const Maxima& maxima);
void check_mask(const MaskBounds& mask);
CheckedBatch check_batch(const PlanConfig& config, const Maxima& maxima, const Batch& batch);

}  // namespace heddle
