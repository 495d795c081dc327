// Decode's heads in step: neighbouring CTAs take the same shares of the same streams, each of another head.
#include "planner/in_step.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

Planned plan_of_lengths(int num_ctas, int num_kv_heads, const std::vector<std::int32_t>& kv) {
  PlanConfig config = named_config(num_ctas);
  config.num_kv_heads = num_kv_heads;
  return plan_of(config, std::vector<std::int32_t>(kv.size(), 1), kv);
}

PlanView::Section decode_of(Planned& planned) { return PlanView(planned.bytes.span()).section(Pipeline::decode); }

// Whether two items are the same but for the head and the slots.
bool are_in_step(const WorkItem& a, const WorkItem& b) {
  return a.request == b.request && a.tile_begin == b.tile_begin && a.tile_end == b.tile_end && a.join == b.join &&
         (a.partial < 0) == (b.partial < 0);
}

}  // namespace

TEST_CASE("as many heads are read in step as divide the model's and leave no CTA idle", "[planner]") {
  const auto heads = [](std::int64_t streams, int num_kv_heads, int num_ctas, int head_dim = 128) {
    PlanConfig config = named_config(num_ctas);
    config.num_kv_heads = num_kv_heads;
    config.head_dim = head_dim;
    return heads_in_step(config, streams);
  };
  CHECK(heads(512, 8, 264) == 8);
  CHECK(heads(512, 8, 132) == 4);
  CHECK(heads(512, 12, 264) == 12);
  CHECK(heads(512, 32, 264) == 8);
  CHECK(heads(512, 5, 264) == 1);
  CHECK(heads(512, 1, 264) == 1);
  CHECK(heads(512, 8, 264, 96) == 1);
  CHECK(heads(263, 8, 264) == 1);  // less than a stream a CTA
  CHECK(heads(264 * kMostInStep, 8, 264) == 8);
  CHECK(heads(264 * kMostInStep + 1, 8, 264) == 1);
  PlanConfig invariant = named_config(264);
  invariant.batch_invariant = true;
  CHECK(heads_in_step(invariant, 512) == 1);
}

TEST_CASE("neighbouring CTAs take the same shares of the same streams, each of another head", "[planner]") {
  const auto [num_heads, lanes] = GENERATE(std::pair{8, 8}, std::pair{16, 8}, std::pair{6, 6});
  std::vector<std::int32_t> kv;
  for (int r = 0; r < 96; ++r) kv.push_back(100 + r * 37 % 4000);
  Planned planned = plan_of_lengths(264, num_heads, kv);
  const PlanView::Section section = decode_of(planned);
  REQUIRE(section.num_streams() == 96 * num_heads);
  int cut = 0;
  for (int cta = 0; cta < section.num_ctas(); ++cta) {
    const auto first = section.items_of(cta / lanes * lanes), own = section.items_of(cta);
    REQUIRE(own.size() == first.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      INFO("CTA " << cta << ", item " << i);
      REQUIRE(are_in_step(own[i], first[i]));
      REQUIRE(own[i].kv_head_begin == first[i].kv_head_begin + cta % lanes);
      REQUIRE(own[i].kv_head_end == own[i].kv_head_begin + 1);
      cut += own[i].join > 0;
    }
  }
  CHECK(cut > 0);
  CHECK(planned.summary.joins[0] == cut);
  CHECK(planned.summary.max_over_mean[0] < 1.02);
}

TEST_CASE("with less than a stream a CTA all heads lie in one row", "[planner]") {
  Planned planned = plan_of_lengths(264, 8, std::vector<std::int32_t>(20, 4096));
  const auto items = decode_of(planned).items_of(1);
  // The rest of the stream that the CTA in front begins.
  CHECK(std::any_of(items.begin(), items.end(), [](const WorkItem& item) { return item.kv_head_begin == 0; }));
}

TEST_CASE("with many streams a CTA an item keeps its heads", "[planner]") {
  Planned planned = plan_of_lengths(264, 8, std::vector<std::int32_t>(1024, 512));
  CHECK(decode_of(planned).items.size() < 2048);
}
