// Random configs, masks and batches for properties that every plan must have.
#pragma once

#include <cstdlib>

#include "tests/planner_batches.h"

namespace heddle_tests {

inline bool keeps(const MaskBounds& mask, std::int64_t q_pos, std::int64_t kv_pos) {
  if (mask.causal && kv_pos > q_pos) return false;
  const bool in_window = q_pos - kv_pos <= mask.window_left && kv_pos - q_pos <= mask.window_right;
  return in_window || kv_pos < mask.sink;
}

// A plan's whole input.
struct Case {
  PlanConfig config;
  MaskBounds mask;
  std::vector<std::int32_t> qo, kv;
  bool table = false;
};

// The keys that a row of a request sees, with its range where that is given.
struct SeenKeys {
  MaskBounds mask;
  std::int64_t q_pos;
  RowRange range;

  SeenKeys(const Case& c, int request, int row)
      : mask(c.mask), range{0, c.kv[std::size_t(request)]} {
    const std::int32_t qo = c.qo[std::size_t(request)], kv = c.kv[std::size_t(request)];
    q_pos = std::int64_t{kv} - qo + row;
    if (c.config.rows_given) range = range_of(qo, kv, row);
  }
  bool contain(std::int64_t kv_pos) const {
    return kv_pos >= range.first && kv_pos < range.end && keeps(mask, q_pos, kv_pos);
  }
};

using Random = std::mt19937;
inline int draw(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}
template <typename T, std::size_t N>
T pick(Random& random, const T (&values)[N]) {
  return values[draw(random, 0, N - 1)];
}

inline MaskBounds random_mask(Random& random) {
  MaskBounds mask;
  mask.causal = draw(random, 0, 1);
  if (draw(random, 0, 2) == 0) mask.window_left = draw(random, 0, 300);
  if (draw(random, 0, 3) == 0) mask.window_right = draw(random, 0, 100);
  if (draw(random, 0, 2) == 0) mask.sink = draw(random, 0, 150);
  return mask;
}

// That decode reads. From a generator of its own: whatever else a seed draws stays what it was.
inline int random_heads_abreast(const Random& random, int num_kv_heads) {
  Random own = random;
  own.discard(1000);
  const int heads = pick(own, {1, 1, 2, 4});
  return num_kv_heads % heads == 0 ? heads : 1;
}

inline Case random_case(Random& random) {
  Case c;
  PlanConfig& config = c.config;
  config.num_kv_heads = pick(random, {1, 2, 3, 8});
  config.group = pick(random, {1, 3, 5, 7, 12, 16, 32});
  config.head_dim = pick(random, {64, 128});
  config.page_size = pick(random, {0, 1, 5, 16});
  const int present = draw(random, 0, 3);
  config.pipeline[0] = {
      present != 1, draw(random, 1, 40), pick(random, {16, 32}), pick(random, {16, 64, 128}), {}};
  config.pipeline[1] = {present != 2,
                        draw(random, 1, 40),
                        pick(random, {16, 48, 64, 128}),
                        pick(random, {16, 48, 64}),
                        {}};
  config.pipeline[0].cost = {draw(random, 0, 40) / 10.0, 1.0, draw(random, 0, 30) / 10.0};
  config.pipeline[1].cost = {draw(random, 0, 40) / 10.0, draw(random, 1, 30) / 10.0,
                             draw(random, 0, 30) / 10.0};
  config.pipeline[0].heads_abreast = random_heads_abreast(random, config.num_kv_heads);
  config.max_decode_rows = draw(random, 1, 16);
  c.mask = random_mask(random);
  const int qo_most = present == 2              ? config.max_decode_rows / config.group
                      : draw(random, 0, 3) == 0 ? 90
                                                : 4;
  const int kv_most = pick(random, {0, 3, 64, 700, 2500});
  for (int r = draw(random, 0, 12); r > 0; --r) {
    c.qo.push_back(draw(random, 0, qo_most));
    c.kv.push_back(draw(random, 0, 5) == 0 ? pick(random, {0, 1, 63, 64, 65, 128})
                                           : draw(random, 0, kv_most));
  }
  config.batch_invariant = draw(random, 0, 1);
  if (config.batch_invariant && draw(random, 0, 1) == 0)
    config.head_dim = 1024;                                 // chunks of few tiles
  if (config.batch_invariant && draw(random, 0, 9) == 0) {  // append cuts nothing below 4096 keys
    c.qo = {std::min(qo_most, 4), std::min(qo_most, 1)};
    c.kv = {draw(random, 0, 14000), draw(random, 0, 3000)};
  }
  config.rows_given = draw(random, 0, 2) == 0;
  if (config.rows_given) c.mask.sink = 0;
  c.table = config.page_size > 0 && draw(random, 0, 2) == 0;
  config.transforms_keys = config.pipeline[1].present && !config.rows_given && c.qo.size() % 2 == 0;
  return c;
}

// HEDDLE_PLANS says how many to try: 1000000 is a night's work for one core at most.
inline int plans_to_try(int otherwise) {
  const char* wanted = std::getenv("HEDDLE_PLANS");
  return wanted != nullptr ? std::atoi(wanted) : otherwise;
}

}  // namespace heddle_tests
