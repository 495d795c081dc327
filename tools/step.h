// One step of a serving loop over a KvCache: which requests take part with how many query rows,
// the batch arrays that follow, and the query side of a layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/key_ranges.h"
#include "tools/kv_cache.h"

namespace heddle::tools {

struct StepRequest {
  int request = 0;  // its number in the KvCache
  int qo_len = 0;
};

// The host arrays that a Batch points into.
struct StepBatch {
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> qo_indptr, kv_indptr, last_page_len, kv_indices;
  KeyRanges ranges;  // of a variant that asks for them

  StepBatch(const KvCache& cache, const std::vector<StepRequest>& requests);
  Batch batch() const;
  int num_qo_rows() const { return qo_indptr.back(); }
  std::int64_t num_kv_tokens(const KvCache& cache) const;
};

// q, o and lse of one layer, at fixed addresses for up to `max_rows` rows.
class QuerySide {
 public:
  // head_dim_vo, that of o: 0 is head_dim.
  QuerySide(const Engine& engine, int max_rows, int num_qo_heads, int head_dim, DType dtype,
            std::uint64_t seed, int head_dim_vo = 0);

  // New random rows of q; everything behind them, all of o and all of lse become NaN.
  void refill(int rows);
  // Puts these rows of q in place of the random ones from `row` on.
  void set_rows(int row, std::span<const std::uint16_t> values);

  Tensor q() const;
  Tensor o() const;
  Tensor lse() const;
  const std::vector<std::uint16_t>& host_q() const { return q_host_; }

  // What run() left, rows 0 .. `rows`, as doubles.
  std::vector<double> read_o(int rows) const;
  std::vector<double> read_lse(int rows) const;
  // Whether o and lse behind the first `rows` rows still hold what refill() put there.
  bool rest_untouched(int rows) const;

 private:
  std::int64_t q_elements() const { return std::int64_t(num_qo_heads_) * head_dim_; }  // of a row
  std::int64_t o_elements() const { return std::int64_t(num_qo_heads_) * head_dim_vo_; }

  int max_rows_, num_qo_heads_, head_dim_, head_dim_vo_;
  DType dtype_;
  NormalSource values_;
  std::vector<std::uint16_t> q_host_;
  DeviceMemory q_, o_, lse_;
};

}  // namespace heddle::tools
