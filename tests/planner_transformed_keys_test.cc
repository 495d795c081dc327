// Whose keys are transformed ahead of append, where they go, and what room a workspace has for them.
#include "engine/error.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

PlanConfig transforming_config() {
  PlanConfig config = named_config();  // tiles of 128 rows: 32 tokens
  config.transforms_keys = true;
  return config;
}

Planned plan_with(const PlanConfig& config, Maxima maxima, const std::vector<std::int32_t>& qo,
                  const std::vector<std::int32_t>& kv, const MaskBounds& mask = {}) {
  Planner planner(config, maxima);
  const OwnedBatch batch(qo, kv, config.page_size);
  Planned planned{{}, planner.layout(), PlanBytes(planner.layout().plan_bytes)};
  planned.summary = planner.plan(batch.view(), mask, planned.bytes.span());
  return planned;
}

std::vector<int> requests_of(const Planned& planned) {
  std::vector<int> requests;
  for (const TransformedKeys& keys : PlanView(planned.bytes.view()).transformed_keys()) requests.push_back(keys.request);
  return requests;
}

}  // namespace

TEST_CASE("keys that several query tiles read are transformed ahead", "[planner][transformed_keys]") {
  const std::vector<std::int32_t> qo{1, 32, 33, 4, 500, 0, 33}, kv{900, 900, 900, 70, 500, 90, 0};
  const Planned planned = plan_of(transforming_config(), qo, kv, {.causal = 1});
  const PlanView view(planned.bytes.view());
  const auto keys = view.transformed_keys();
  REQUIRE(keys.size() == 2);
  CHECK((keys[0].request == 2 && keys[0].row == 0 && keys[0].key_begin == 0 && keys[0].key_end == 900));
  CHECK((keys[0].qo_len == 33 && keys[0].kv_len == 900));
  CHECK((keys[1].request == 4 && keys[1].row == 900 && keys[1].key_begin == 0 && keys[1].key_end == 500));
  for (const TransformedKeys& request : keys) CHECK(request.kv_offset == view.requests()[request.request].kv_offset);
  const std::vector<std::int32_t> rows(view.key_rows().begin(), view.key_rows().end());
  CHECK(rows == std::vector<std::int32_t>{kNoKeyRow, kNoKeyRow, 0, kNoKeyRow, 900, kNoKeyRow, kNoKeyRow});
  CHECK(planned.summary.transformed_keys == 1400);
  CHECK(std::size_t(view.header().key_row_offset) + rows.size() * 4 <= planned.summary.copy_bytes);
}

TEST_CASE("keys that no row sees behind a window are not transformed", "[planner][transformed_keys]") {
  const Planned planned = plan_of(transforming_config(), {100, 100}, {1000, 150}, {.causal = 1, .window_left = 63});
  const PlanView view(planned.bytes.view());
  const auto keys = view.transformed_keys();
  REQUIRE(keys.size() == 2);
  CHECK((keys[0].key_begin == 837 && keys[0].key_end == 1000));  // the first row stands at 900
  CHECK((keys[1].key_begin == 0 && keys[1].row == 163));
  CHECK((view.key_rows()[0] == -837 && view.key_rows()[1] == 163));
}

TEST_CASE("keys between sinks and a window, which no row sees, are not read", "[planner][transformed_keys]") {
  const MaskBounds mask{.causal = 1, .window_left = 63, .sink = 40};
  const Planned planned = plan_of(transforming_config(), {100, 100, 100}, {203, 204, 1000}, mask);
  const PlanView view(planned.bytes.view());
  REQUIRE(view.transformed_keys().size() == 1);  // its window begins at 40, where the sinks end
  CHECK((view.transformed_keys()[0].request == 0 && view.transformed_keys()[0].key_begin == 0));
}

TEST_CASE("requests whose keys do not fit are passed over, later ones that do are not", "[planner][transformed_keys]") {
  const std::vector<std::int32_t> qo{100, 100, 100, 100}, kv{300, 800, 250, 101};
  Maxima maxima = maxima_of(qo, kv);
  const auto chosen = [&](std::int64_t room) {
    maxima.max_transformed_keys = room;
    return requests_of(plan_with(transforming_config(), maxima, qo, kv));
  };
  CHECK(chosen(-1) == std::vector<int>{0, 1, 2, 3});
  CHECK(chosen(1451) == std::vector<int>{0, 1, 2, 3});
  CHECK(chosen(1450) == std::vector<int>{0, 1, 2});
  CHECK(chosen(700) == std::vector<int>{0, 2, 3});
  CHECK(chosen(100).empty());
  CHECK(chosen(0).empty());
  maxima.max_transformed_keys = 0;
  const Planned none = plan_with(transforming_config(), maxima, qo, kv);
  CHECK((none.summary.transformed_keys == 0 && PlanView(none.bytes.view()).key_rows().empty()));
}

TEST_CASE("without a key_transform a plan and its workspace are what they were", "[planner][transformed_keys]") {
  const std::vector<std::int32_t> qo{100, 1}, kv{300, 800};
  PlanConfig none = named_config();
  const WorkspaceLayout plain = workspace_layout(none, maxima_of(qo, kv));
  const WorkspaceLayout transforming = workspace_layout(transforming_config(), maxima_of(qo, kv));
  CHECK(plain.max_transformed_keys == 0);
  CHECK(transforming.total_bytes - plain.total_bytes >= std::size_t{1100} * 8 * 128 * 2);
  CHECK(requests_of(plan_of(none, qo, kv)).empty());
}

TEST_CASE("a workspace has room for 32 MiB of transformed keys unless told", "[planner][transformed_keys]") {
  Maxima maxima{.max_requests = 8, .max_qo_rows = 4096, .max_kv_tokens = 1 << 20};
  CHECK(workspace_layout(transforming_config(), maxima).max_transformed_keys == 16384);  // 8 heads of 128, 2 bytes
  maxima.max_transformed_keys = 40000;
  const WorkspaceLayout layout = workspace_layout(transforming_config(), maxima);
  CHECK(layout.max_transformed_keys == 40000);
  CHECK(layout.transformed_keys % 256 == 0);
  CHECK(layout.total_bytes >= layout.transformed_keys + std::size_t{40000} * 8 * 128 * 2);
  maxima.max_kv_tokens = 1000;  // no batch has more
  CHECK(workspace_layout(transforming_config(), maxima).max_transformed_keys == 1000);
}

TEST_CASE("batch-invariant plans transform ahead only where every batch's keys fit", "[planner][transformed_keys]") {
  PlanConfig config = transforming_config();
  config.batch_invariant = true;
  Maxima maxima{.max_requests = 8, .max_qo_rows = 4096, .max_kv_tokens = 16384};
  CHECK(workspace_layout(config, maxima).max_transformed_keys == 16384);
  maxima.max_kv_tokens = 16385;
  CHECK(workspace_layout(config, maxima).max_transformed_keys == 0);
  maxima.max_transformed_keys = 16385;
  CHECK(workspace_layout(config, maxima).max_transformed_keys == 16385);
}

TEST_CASE("room for keys that nothing transforms is refused", "[planner][transformed_keys]") {
  const Maxima maxima{.max_requests = 1, .max_qo_rows = 64, .max_kv_tokens = 64, .max_transformed_keys = 64};
  CHECK_THROWS_WITH(workspace_layout(named_config(), maxima), Catch::Matchers::StartsWith("max_transformed_keys is 64, but no keys"));
  Maxima negative = maxima;
  negative.max_transformed_keys = -2;
  CHECK_THROWS_WITH(workspace_layout(transforming_config(), negative), Catch::Matchers::StartsWith("max_transformed_keys is -2; it must be"));
  PlanConfig config = transforming_config();
  config.pipeline[1].present = false;
  CHECK_THROWS_WITH(workspace_layout(config, {}), Catch::Matchers::StartsWith("transforms_keys needs the append pipeline"));
  config = transforming_config();
  config.rows_given = true;
  CHECK_THROWS_WITH(workspace_layout(config, {}), Catch::Matchers::StartsWith("transforms_keys and rows_given exclude"));
  config = transforming_config();
  config.share_prefixes = true;
  CHECK_THROWS_WITH(workspace_layout(config, {}), Catch::Matchers::StartsWith("transforms_keys and share_prefixes exclude"));
}
