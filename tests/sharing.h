// Random batches whose neighbours share leading pages, some of them, beside others that do not. Prefixes nest.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "tests/problem.h"

namespace heddle_tests {

struct SharingSizes {
  int most_prefix_keys;  // of a group; of up to two inside it half as many each
  int most_requests;     // of a group
  int most_own_keys;     // of a request, behind its prefix
};

inline ProblemShape sharing_shape(heddle::tools::Random& random, const heddle::AttentionConfig& config,
                                  const SharingSizes& sizes) {
  ProblemShape shape{.config = config, .want_lse = config.variant != "sigmoid"};
  const int page = config.page_size, group = config.num_qo_heads / config.num_kv_heads;
  const int most_rows = std::max(1, std::min(4, 16 / group));
  const auto add = [&](int qo_len, int kv_len, int shared_pages) {
    shape.qo_lens.push_back(qo_len);
    shape.kv_lens.push_back(kv_len);
    shape.shared_pages.push_back(shared_pages);
  };
  for (int groups = 1 + random.below(3); groups > 0; --groups) {
    if (random.below(2)) add(random.below(2) ? 0 : 40, 50 + random.below(200), 0);  // none, or a prefill
    const int half = sizes.most_prefix_keys / 2;
    // Keys up to the end of each level, in pages.
    std::vector<int> ends{(half + random.below(half)) / page};
    while (ends.size() < 4 && random.below(3)) ends.push_back(ends.back() + (half / 2 + random.below(half / 2)) / page);
    for (int i = 0, n = 1 + random.below(sizes.most_requests); i < n; ++i) {
      const int qo_len = 1 + random.below(most_rows);
      const int same = i == 0 ? 0 : ends[static_cast<std::size_t>(random.below(static_cast<int>(ends.size())))];
      add(qo_len, ends.back() * page + qo_len + random.below(sizes.most_own_keys), same);
    }
  }
  return shape;
}

// Page ids of a batch for plan() alone, by which no two requests have more than `pages` in common.
inline std::vector<std::int32_t> ids_apart(const heddle::Batch& batch, int pages) {
  std::vector<std::int32_t> ids(batch.kv_indices.begin(), batch.kv_indices.end());
  for (std::size_t r = 0; r + 1 < batch.kv_indptr.size(); ++r)
    if (batch.kv_indptr[r] + pages < batch.kv_indptr[r + 1])
      ids[static_cast<std::size_t>(batch.kv_indptr[r] + pages)] = -1 - static_cast<std::int32_t>(r);
  return ids;
}

inline heddle::AttentionConfig sharing_config(heddle::tools::Random& random, int head_dim) {
  const auto pick = [&random]<class T>(std::initializer_list<T> from) {
    return from.begin()[random.below(static_cast<int>(from.size()))];
  };
  const int kv_heads = pick({1, 2}), group = pick({1, 3, 4, 8});
  return {.variant = pick({"softmax", "causal", "soft_cap", "sigmoid", "softmax_one"}),
          .num_qo_heads = kv_heads * group,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .head_dim_vo = pick({0, 0, head_dim / 2}),
          .page_size = pick({1, 16, 64}),
          .share_prefixes = true};
}

}  // namespace heddle_tests
