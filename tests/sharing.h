// Random batches whose neighbours share leading pages, some of them, beside others that do not.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "tests/problem.h"

namespace heddle_tests {

struct SharingSizes {
  int most_prefix_keys;  // of a group
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
    const int pages = (sizes.most_prefix_keys / 2 + random.below(sizes.most_prefix_keys / 2)) / page;
    for (int i = 0, n = 1 + random.below(sizes.most_requests); i < n; ++i) {
      const int qo_len = 1 + random.below(most_rows);
      add(qo_len, pages * page + qo_len + random.below(sizes.most_own_keys), i == 0 ? 0 : pages);
    }
  }
  return shape;
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
