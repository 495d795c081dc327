// plan() never allocates.
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/count_allocations.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

TEST_CASE("plan allocates nothing, not even the first time", "[planner]") {
  const std::vector<std::int32_t> kv = parse_lengths("uniform:200:1:9000");
  std::vector<std::int32_t> qo(kv.size(), 1);
  for (std::size_t r = 0; r < qo.size(); r += 7) qo[r] = 300;
  for (const int kind : {0, 1, 2, 3}) {
    PlanConfig config = named_config();
    config.batch_invariant = kind % 2 == 1;
    config.rows_given = kind >= 2;
    config.transforms_keys = !config.rows_given;
    OwnedBatch large(qo, kv, 16), small({1}, {77}, 16), none({}, {}, 16);
    if (config.rows_given) large.give_ranges(qo, kv), small.give_ranges({1}, {77});
    Planner planner(config, maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);

    const long before = allocations;
    CHECK(before > 0);
    for (const OwnedBatch* batch : {&large, &small, &none, &large}) {
      planner.plan(batch->view(), {.causal = 1}, bytes.span());
    }
    const long after = allocations;
    CHECK(after == before);
  }
}
