#include "planner/layout.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

TEST_CASE("the workspace of 132 SMs stays below 32 MiB for 10,000 requests", "[planner][workspace]") {
  constexpr std::size_t kLimit = std::size_t{32} << 20;
  const Maxima maxima{.max_requests = 10000, .max_qo_rows = 65536, .max_kv_tokens = 1 << 24};
  CHECK(workspace_layout(named_config(264, 132), maxima).total_bytes <= kLimit);
  CHECK(workspace_layout(named_config(264, 264), maxima).total_bytes <= kLimit);
}

TEST_CASE("partial states do not grow with the batch", "[planner][workspace]") {
  const auto small = workspace_layout(named_config(), {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 1});
  const auto large =
      workspace_layout(named_config(), {.max_requests = 1 << 20, .max_qo_rows = 1 << 20, .max_kv_tokens = 1LL << 40});
  CHECK(large.total_bytes - large.plan_bytes <= small.total_bytes - small.plan_bytes + 2 * 256);
}

TEST_CASE("sections are aligned, in order and disjoint", "[planner][workspace]") {
  const auto layout = workspace_layout(named_config(), {.max_requests = 9, .max_qo_rows = 77, .max_kv_tokens = 12345});
  std::size_t end = layout.plan_bytes;
  const auto check = [&end](std::size_t begin, std::size_t bytes) {
    CHECK(begin % 256 == 0);
    CHECK(begin >= end);
    CHECK(begin < end + 256);
    end = begin + bytes;
  };
  const std::size_t rows[] = {132 * 16, 132 * 128};
  for (int p = 0; p < kNumPipelines; ++p) {
    CHECK(layout.section[p].max_partials == 132);
    check(layout.section[p].partial_o, rows[p] * 128 * sizeof(float));
    check(layout.section[p].partial_lse, rows[p] * sizeof(float));
  }
  CHECK(layout.slots_begin >= layout.plan_bytes);
  CHECK(layout.slots_begin <= layout.section[0].partial_o);
  CHECK(layout.slots_end - end < 256);
  CHECK(layout.total_bytes == layout.slots_end);
}

TEST_CASE("partial states are as wide as rows of v", "[planner][workspace]") {
  const Maxima maxima{.max_requests = 9, .max_qo_rows = 77, .max_kv_tokens = 12345};
  PlanConfig config = named_config();
  const auto even = workspace_layout(config, maxima);
  config.head_dim_vo = config.head_dim / 2;
  const auto half = workspace_layout(config, maxima);
  CHECK(half.section[0].partial_lse - half.section[0].partial_o == 132 * 16 * 64 * sizeof(float));
  CHECK(2 * (half.section[1].partial_lse - half.section[1].partial_o) ==
        even.section[1].partial_lse - even.section[1].partial_o);
}

TEST_CASE("an absent pipeline takes no room", "[planner][workspace]") {
  PlanConfig config = named_config();
  config.pipeline[1] = {};
  const auto layout = workspace_layout(config, {.max_requests = 9, .max_qo_rows = 36, .max_kv_tokens = 12345});
  CHECK(layout.section[1].max_partials == 0);
  CHECK(layout.total_bytes < 264 * 16 * 129 * 4 + 64 * 1024);
}

TEST_CASE("states of shared prefixes: some for each row of q that decode can have, and head", "[planner][workspace]") {
  PlanConfig config = named_config();
  // Nine requests of at most 16 packed rows: 4 rows of q each.
  const Maxima maxima{.max_requests = 9, .max_qo_rows = 8192, .max_kv_tokens = 12345};
  const WorkspaceLayout flat = workspace_layout(config, maxima);
  config.share_prefixes = true;
  const WorkspaceLayout shared = workspace_layout(config, maxima);
  const std::size_t rows = std::min(9 * 4 * kMaxPrefixStates, 132 * 128 / 32) * 32;
  CHECK(flat.prefix_o == 0);
  CHECK(shared.prefix_o % 256 == 0);
  CHECK(shared.prefix_lse >= shared.prefix_o + rows * 128 * sizeof(float));
  CHECK(shared.slots_end >= shared.prefix_lse + rows * sizeof(float));
  CHECK(shared.total_bytes - shared.plan_bytes <= flat.total_bytes - flat.plan_bytes + rows * 129 * sizeof(float) + 3 * 256);
}

// Plans that use all the room there is: as many query tiles as the rows can make.
TEST_CASE("the most awkward lengths still fit into plan_bytes", "[planner][workspace]") {
  for (const int qo_len : {1, 4, 5, 32, 33, 64, 65}) {
    INFO("qo_len " << qo_len);
    const std::vector<std::int32_t> lens(50, qo_len);
    const Planned planned = plan_of(named_config(37, 41), lens, lens, {.causal = 1});
    CHECK(planned.summary.copy_bytes <= planned.layout.plan_bytes);
    const PlanBounds bounds = plan_bounds(named_config(37, 41), maxima_of(lens, lens), Pipeline::append);
    CHECK(planned.summary.items[1] <= bounds.items);
  }
}

TEST_CASE("zero maxima make a workspace, and the empty batch a plan", "[planner][workspace]") {
  const Planned planned = plan_of(named_config(), {}, {});
  CHECK(planned.summary.items[0] + planned.summary.items[1] == 0);
  CHECK(planned.summary.max_over_mean[0] == 1.0);
  CHECK(planned.summary.copy_bytes > sizeof(PlanHeader));
}

TEST_CASE("batch_invariant: slots are bounded by the keys and by the requests", "[planner][workspace]") {
  PlanConfig config = named_config(264, 132);
  config.batch_invariant = true;
  const auto slots = [&](const Maxima& maxima) {
    const WorkspaceLayout layout = workspace_layout(config, maxima);
    return std::pair(layout.section[0].max_partials, layout.section[1].max_partials);
  };
  const Maxima usual{.max_requests = 256, .max_qo_rows = 256, .max_kv_tokens = 1 << 20};
  CHECK(slots(usual) == std::pair(8 * 744, 8 * 256));  // a slot for 22 tiles of 64 keys; for 64 tiles
  CHECK(slots({.max_requests = 2, .max_qo_rows = 256, .max_kv_tokens = 1LL << 40}) == std::pair(8 * 2 * 63, 8 * 2 * 7));
  CHECK(slots({.max_requests = 256, .max_qo_rows = 1024, .max_kv_tokens = 1 << 20, .max_qo_len = 4}).second == 0);
  config.pipeline[1] = {};
  CHECK(workspace_layout(config, usual).total_bytes < std::size_t{50} << 20);
}

// As many chunks as the keys allow, and as many query tiles as are cut.
TEST_CASE("batch_invariant: the most awkward lengths fit too", "[planner][workspace]") {
  PlanConfig config = named_config(37, 41);
  config.batch_invariant = true;
  for (const int qo_len : {1, 4, 5, 32, 33, 64, 65, 127, 129, 256, 257}) {
    for (const int kv_len : {1409, 4097, 8193, 16385, 32769, 90113, 131072}) {
      INFO("qo_len " << qo_len << ", kv_len " << kv_len);
      const std::vector<std::int32_t> qo(9, qo_len), kv(9, kv_len);
      const Planned planned = plan_of(config, qo, kv);
      for (int p = 0; p < kNumPipelines; ++p) {
        const PlanBounds bounds = plan_bounds(config, maxima_of(qo, kv), static_cast<Pipeline>(p));
        CHECK(planned.summary.items[p] <= bounds.items);
        CHECK(planned.summary.partials[p] <= bounds.partials);
        CHECK(planned.layout.section[p].max_partials == bounds.partials);
      }
    }
  }
}
