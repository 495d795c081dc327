#include "planner/check_batch.h"

#include <string_view>

#include "planner/refuse.h"
#include "planner/survey.h"

namespace heddle {
namespace {

// Checks that `indptr` has num_requests + 1 entries, starts at 0 and never decreases.
void check_indptr(std::string_view name, std::span<const std::int32_t> indptr, int num_requests) {
  if (indptr.size() != static_cast<std::size_t>(num_requests) + 1) {
    refuse("{} has {} entries; a batch of {} requests (as qo_indptr says) needs {}.", name,
           indptr.size(), num_requests, num_requests + 1);
  }
  if (indptr[0] != 0) refuse("{}[0] is {}; it must be 0.", name, indptr[0]);
  for (int r = 0; r < num_requests; ++r) {
    if (indptr[r + 1] < indptr[r]) {
      refuse("Request {}: {} decreases from {} to {}; it must never decrease.", r, name, indptr[r],
             indptr[r + 1]);
    }
  }
}

void check_size(std::string_view name, std::size_t size, int num_requests) {
  if (size != static_cast<std::size_t>(num_requests)) {
    refuse("{} has {} entries; a batch of {} requests (as qo_indptr says) needs {}.", name, size,
           num_requests, num_requests);
  }
}

KvForm form_of(const PlanConfig& config, const Batch& batch, int num_requests) {
  const bool has_csr = !batch.kv_indptr.empty() || !batch.last_page_len.empty();
  const bool has_table = !batch.kv_lens.empty() || batch.kv_table_stride != 0;
  if (config.page_size == 0) {
    if (has_table || !batch.last_page_len.empty()) {
      refuse(
          "The batch gives {}, but this plan is for ragged K/V (page_size 0): give kv_indptr "
          "alone.",
          has_table ? "a dense page table" : "last_page_len");
    }
    return KvForm::ragged;
  }
  if (has_csr && has_table) {
    refuse(
        "The batch mixes kv_indptr or last_page_len with kv_table_stride or kv_lens; give pages "
        "either as CSR "
        "(kv_indptr and last_page_len) or as a dense table (kv_table_stride and kv_lens).");
  }
  if (!has_csr && !has_table && num_requests > 0) {
    refuse(
        "The batch of {} requests names no pages; give kv_indptr and last_page_len, or "
        "kv_table_stride and "
        "kv_lens.",
        num_requests);
  }
  return has_csr ? KvForm::pages : KvForm::table;
}

void check_pages(const PlanConfig& config, const Batch& batch, int num_requests) {
  check_indptr("kv_indptr", batch.kv_indptr, num_requests);
  check_size("last_page_len", batch.last_page_len.size(), num_requests);
  for (int r = 0; r < num_requests; ++r) {
    const std::int64_t pages = std::int64_t{batch.kv_indptr[r + 1]} - batch.kv_indptr[r];
    const std::int32_t last = batch.last_page_len[r];
    if (pages == 0 && last != 0)
      refuse("Request {}: last_page_len is {}; without a page it must be 0.", r, last);
    if (pages > 0 && (last < 1 || last > config.page_size)) {
      refuse("Request {}: last_page_len is {}; with {} pages of {} keys it must be from 1 to {}.",
             r, last, pages, config.page_size, config.page_size);
    }
    // Before anything computes kv_len in 32 bits.
    const std::int64_t kv_len = pages == 0 ? 0 : (pages - 1) * config.page_size + last;
    if (kv_len > kMaxKvLen) {
      refuse("Request {}: kv_len is {} ({} pages of {} keys); at most {} is allowed.", r, kv_len,
             pages, config.page_size, kMaxKvLen);
    }
  }
}

void check_table(const PlanConfig& config, const Batch& batch, int num_requests) {
  check_size("kv_lens", batch.kv_lens.size(), num_requests);
  const std::int64_t stride = batch.kv_table_stride;
  if (stride < 0) refuse("kv_table_stride is {}; it must not be negative.", stride);
  if (stride > kMaxTableStride)
    refuse("kv_table_stride is {}; at most {} is allowed.", stride, kMaxTableStride);
  for (int r = 0; r < num_requests; ++r) {
    const std::int32_t kv_len = batch.kv_lens[r];
    if (kv_len < 0) refuse("Request {}: kv_lens is {}; it must not be negative.", r, kv_len);
    if (kv_len > kMaxKvLen)
      refuse("Request {}: kv_lens is {}; at most {} is allowed.", r, kv_len, kMaxKvLen);
    const std::int64_t pages = (std::int64_t{kv_len} + config.page_size - 1) / config.page_size;
    if (pages > stride) {
      refuse(
          "Request {}: kv_lens is {}, which takes {} pages of {} keys; kv_table_stride is {} and "
          "must be at "
          "least {}.",
          r, kv_len, pages, config.page_size, stride, pages);
    }
  }
}

void check_ragged(const Batch& batch, int num_requests) {
  check_indptr("kv_indptr", batch.kv_indptr, num_requests);
  for (int r = 0; r < num_requests; ++r) {
    const std::int32_t kv_len = batch.kv_indptr[r + 1] - batch.kv_indptr[r];
    if (kv_len > kMaxKvLen)
      refuse("Request {}: kv_len is {}; at most {} is allowed.", r, kv_len, kMaxKvLen);
  }
}

void check_qo_len(const PlanConfig& config, const Maxima& maxima, int r, std::int64_t qo_len) {
  if (maxima.max_qo_len > 0 && qo_len > maxima.max_qo_len) {
    refuse("Request {}: qo_len is {}; this workspace was made for max_qo_len = {}.", r, qo_len,
           maxima.max_qo_len);
  }
  const std::int64_t rows = qo_len * config.group;
  if (!config.of(Pipeline::append).present && rows > config.max_decode_rows) {
    refuse(
        "Request {}: qo_len is {}, which makes {} packed rows with {} query heads to a kv head; "
        "without the append "
        "pipeline at most {} rows, a qo_len of {}, are allowed.",
        r, qo_len, rows, config.group, config.max_decode_rows,
        config.max_decode_rows / config.group);
  }
  if (rows > kMaxRows) {
    refuse(
        "Request {}: qo_len is {}, which makes {} packed rows with {} query heads to a kv head; at "
        "most {} are "
        "allowed.",
        r, qo_len, rows, config.group, kMaxRows);
  }
}

// The rules that need every length: what the workspace was made for.
void check_against_maxima(const PlanConfig& config, const Maxima& maxima,
                          const CheckedBatch& checked) {
  std::int64_t kv_tokens = 0;
  for (int r = 0; r < checked.num_requests; ++r) {
    check_qo_len(config, maxima, r, checked.qo_len(r));
    kv_tokens += checked.kv_len(r);
    if (checked.batch.qo_indptr[r + 1] > maxima.max_qo_rows) {
      refuse(
          "Request {}: its {} query rows bring the batch to {}; this workspace was made for "
          "max_qo_rows = {}.",
          r, checked.qo_len(r), checked.batch.qo_indptr[r + 1], maxima.max_qo_rows);
    }
    if (kv_tokens > maxima.max_kv_tokens) {
      refuse(
          "Request {}: its {} keys bring the batch to {}; this workspace was made for "
          "max_kv_tokens = {}.",
          r, checked.kv_len(r), kv_tokens, maxima.max_kv_tokens);
    }
  }
}

// Every rule, one after the other, up to the first that is broken: says which request breaks it.
void check_every_rule(const PlanConfig& config, const Maxima& maxima, const CheckedBatch& checked) {
  const Batch& batch = checked.batch;
  check_indptr("qo_indptr", batch.qo_indptr, checked.num_requests);
  if (checked.form == KvForm::pages) check_pages(config, batch, checked.num_requests);
  if (checked.form == KvForm::table) check_table(config, batch, checked.num_requests);
  if (checked.form == KvForm::ragged) check_ragged(batch, checked.num_requests);
  check_against_maxima(config, maxima, checked);
}

void check_page_ids(const PlanConfig& config, const CheckedBatch& checked) {
  const std::span<const std::int32_t> ids = checked.batch.kv_indices;
  if (ids.empty()) return;
  if (!config.share_prefixes)
    refuse("The batch gives {} page ids in kv_indices, which only a plan with share_prefixes reads.", ids.size());
  if (static_cast<std::int64_t>(ids.size()) < checked.num_kv_entries()) {
    refuse("kv_indices has {} entries; this batch reaches {}.", ids.size(), checked.num_kv_entries());
  }
}

bool has_right_sizes(const CheckedBatch& checked) {
  const auto requests = static_cast<std::size_t>(checked.num_requests);
  const Batch& batch = checked.batch;
  if (checked.form == KvForm::table) return batch.kv_lens.size() == requests;
  return batch.kv_indptr.size() == requests + 1 &&
         (checked.form == KvForm::ragged || batch.last_page_len.size() == requests);
}

}  // namespace

CheckedBatch check_batch(const PlanConfig& config, const Maxima& maxima, const Batch& batch) {
  if (batch.qo_indptr.empty()) {
    refuse(
        "qo_indptr is empty; it needs one entry more than the batch has requests, so a single 0 "
        "for none.");
  }
  const std::size_t requests = batch.qo_indptr.size() - 1;
  if (requests > static_cast<std::size_t>(maxima.max_requests)) {
    refuse("The batch has {} requests; this workspace was made for max_requests = {}.", requests,
           maxima.max_requests);
  }
  const int num_requests = static_cast<int>(requests);
  CheckedBatch checked{batch, form_of(config, batch, num_requests), num_requests, config.page_size};
  if (!has_right_sizes(checked)) check_every_rule(config, maxima, checked);
  const Survey seen = survey(checked);
  if (!seen.allows(config, maxima, checked)) check_every_rule(config, maxima, checked);
  checked.max_kv_len = seen.max_kv_len;
  check_page_ids(config, checked);
  return checked;
}

}  // namespace heddle
