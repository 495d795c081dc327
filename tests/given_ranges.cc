#include "tests/given_ranges.h"

#include <algorithm>
#include <functional>

#include "tools/options.h"

namespace heddle_tests {

using namespace heddle;
using tools::KeyRanges;

namespace {

using Row = std::function<void(KeyRanges& ranges, int q_pos, int kv_len)>;

// A kind for each request in turn.
const std::vector<Row>& kinds() {
  static const std::vector<Row> all = {
      [](KeyRanges& r, int q_pos, int kv_len) { r.add(q_pos / 150 * 150, std::min((q_pos / 150 + 1) * 150, kv_len)); },
      [](KeyRanges& r, int q_pos, int kv_len) { r.add(0, std::min(std::max(q_pos + 1, 100), kv_len)); },
      // A span, as of an image, in causal text; every seventh row sees nothing.
      [](KeyRanges& r, int q_pos, int kv_len) {
        if (q_pos % 7 == 3) return r.add(kv_len, 0);
        r.add(0, q_pos >= 30 && q_pos < 120 ? std::min(120, kv_len) : q_pos + 1);
      },
      // Two ends that jump from row to row, often the wrong way round.
      [](KeyRanges& r, int q_pos, int kv_len) { r.add(q_pos * 7919 % (kv_len + 1), q_pos * 104729 % (kv_len + 1)); },
      [](KeyRanges& r, int q_pos, int kv_len) { r.add(std::max(q_pos - 90, 0), std::min(q_pos + 40, kv_len)); },
      [](KeyRanges& r, int, int) { r.add(0, 0); },
      [](KeyRanges& r, int, int kv_len) { r.add(0, kv_len); },
  };
  return all;
}

KeyRanges one_of_each(const ProblemShape& shape, std::size_t first_kind) {
  KeyRanges ranges;
  for (std::size_t request = 0; request < shape.qo_lens.size(); ++request)
    for (int row = 0; row < shape.qo_lens[request]; ++row) {
      const int q_pos = std::max(shape.kv_lens[request] - shape.qo_lens[request] + row, 0);
      kinds()[(first_kind + request) % kinds().size()](ranges, q_pos, shape.kv_lens[request]);
    }
  return ranges;
}

}  // namespace

std::vector<ProblemShape> given_range_shapes(Engine& engine, const std::string& variant) {
  const std::string name = tools::resolve_variant(engine, variant);
  const auto config = [&](int qo_heads, int kv_heads, int head_dim, int page_size, auto change) {
    AttentionConfig c{.variant = name, .num_qo_heads = qo_heads, .num_kv_heads = kv_heads, .head_dim = head_dim,
                      .page_size = page_size};
    change(c);
    return c;
  };
  const auto as_is = [](AttentionConfig&) {};
  std::vector<ProblemShape> shapes = {
      {.config = config(4, 2, 64, 16, as_is), .qo_lens = {1, 2, 5, 8, 1, 1, 3}, .kv_lens = {700, 333, 150, 400, 1500, 90, 65}},
      {.config = config(2, 2, 128, 0, [](AttentionConfig& c) { c.max_qo_len = 8; }),  // decode alone, rows of 8
       .qo_lens = {8, 1, 7, 3, 0, 2, 1}, .kv_lens = {1030, 64, 200, 4, 10, 90, 130}},
      {.config = config(2, 2, 64, 1, as_is), .qo_lens = {200, 40, 193, 100}, .kv_lens = {450, 40, 300, 257}},
      {.config = config(8, 2, 128, 16, as_is), .qo_lens = {0, 70, 130, 33, 64}, .kv_lens = {3, 200, 130, 20, 600}},
      {.config = config(4, 1, 128, 64, [](AttentionConfig& c) { c.portable = true; }), .qo_lens = {100, 60, 100}, .kv_lens = {300, 130, 229}},
      {.config = config(4, 1, 64, 5, [](AttentionConfig& c) { c.max_qo_len = 16; }), .qo_lens = {16, 9, 16, 13}, .kv_lens = {250, 100, 129, 500}},
      {.config = config(2, 1, 128, 16, [](AttentionConfig& c) { c.batch_invariant = true; }), .qo_lens = {2, 40, 1}, .kv_lens = {3000, 500, 5000}},
  };
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].ranges = one_of_each(shapes[i], i);
    if (variant.starts_with("sliding_window")) shapes[i].params = {{"window", 100}};
  }
  return shapes;
}

Found unseen_keys_matter(Engine& engine, const AttentionConfig& config) {
  ProblemShape shape{.config = config, .qo_lens = {2, 150}, .kv_lens = {900, 700}};
  KeyRanges ranges;
  for (int row = 0; row < 152; ++row) row < 2 ? ranges.add(301 + row, 430) : ranges.add(100 + (row - 2) / 50 * 101, 517);
  shape.ranges = ranges;
  CaseRun run(engine, shape);
  run.problem.poison_keys(0, 0, 301);
  run.problem.poison_keys(0, 430, 900);
  run.problem.poison_keys(1, 0, 100);
  run.problem.poison_keys(1, 517, 700);
  return run.judge();
}

}  // namespace heddle_tests
