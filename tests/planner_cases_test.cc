// Public bug reports about plans, tried on the planner; tests/cases.json says where each comes
// from.
#include <chrono>
#include <map>

#include "planner/check_batch.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/patience.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

using Lengths = std::vector<std::int32_t>;

// Plans within maxima of its own, as a serving loop does.
struct Serving {
  Planner planner;
  PlanBytes bytes;
  PlanSummary summary;

  Serving(const PlanConfig& config, const Maxima& maxima)
      : planner(config, maxima), bytes(planner.layout().plan_bytes) {}
  PlanView plan(const Lengths& qo, const Lengths& kv, const MaskBounds& mask = {}) {
    summary =
        planner.plan(OwnedBatch(qo, kv, planner.config().page_size).view(), mask, bytes.span());
    return PlanView(bytes.view().first(summary.plan_bytes));
  }
};

std::vector<int> grids_of(const PlanView& view) {
  return {view.section(Pipeline::decode).num_ctas(), view.section(Pipeline::append).num_ctas()};
}

int busy_ctas(const PlanView& view, Pipeline pipeline) {
  int busy = 0;
  const auto section = view.section(pipeline);
  for (int cta = 0; cta < section.num_ctas(); ++cta) busy += !section.items_of(cta).empty();
  return busy;
}

}  // namespace

TEST_CASE("B17 many requests without keys, at the bound of the maxima", "[planner][cases]") {
  const Lengths qo(600, 1), kv = [] {
    Lengths lens(600, 0);
    for (std::size_t r = 0; r < lens.size(); r += 7) lens[r] = 300;
    return lens;
  }();
  for (const bool invariant : {false, true}) {
    PlanConfig config = named_config(37, 41);
    config.batch_invariant = invariant;
    const Planned planned = plan_of(config, qo, kv);
    CHECK(planned.summary.plan_bytes <= planned.layout.plan_bytes);
    std::vector<int> heads(600);
    for (const WorkItem& item : PlanView(planned.bytes.view()).section(Pipeline::decode).items)
      if (kv[std::size_t(item.request)] == 0)
        heads[std::size_t(item.request)] += item.kv_head_end - item.kv_head_begin;
    for (std::size_t r = 0; r < kv.size(); ++r)
      CHECK(heads[r] == (kv[r] == 0 ? config.num_kv_heads : 0));
  }
}

TEST_CASE("B37 batches of 65,535, 65,536 and 80,000 requests", "[planner][cases]") {
  for (const int requests : {65535, 65536, 80000}) {
    const Planned planned = plan_of(named_config(), Lengths(requests, 1), Lengths(requests, 16));
    CHECK(planned.summary.items[0] >= requests);
    CHECK(PlanView(planned.bytes.view()).section(Pipeline::decode).num_ctas() == 132);
  }
}

TEST_CASE("B52 the grid and the sections' places do not follow the batch", "[planner][cases]") {
  Serving serving(named_config(),
                  {.max_requests = 64, .max_qo_rows = 2048, .max_kv_tokens = 1 << 20});
  const std::vector<int> grids = grids_of(serving.plan({1024, 1024}, {1024, 1024}));
  const auto place = [](const PlanView& view) { return view.header().section[1].cta_begin_offset; };
  const auto wanted = place(PlanView(serving.bytes.view()));
  for (const Lengths& qo : {Lengths{1, 2047}, Lengths{2048}, Lengths{}, Lengths(64, 1)}) {
    const PlanView view = serving.plan(qo, Lengths(qo.size(), 2048));
    CHECK(grids_of(view) == grids);
    CHECK(place(view) == wanted);
  }
}

TEST_CASE("B53 multi-token decode does not inflate the workspace", "[planner][cases]") {
  PlanConfig config = named_config();
  config.group = 8;
  const Maxima one{.max_requests = 8, .max_qo_rows = 8, .max_kv_tokens = 1 << 20},
      three{.max_requests = 8, .max_qo_rows = 24, .max_kv_tokens = 1 << 20};
  CHECK(workspace_layout(config, three).total_bytes - workspace_layout(config, one).total_bytes <
        64 * 1024);
  CHECK(workspace_layout(config, three).total_bytes < std::size_t{16} << 20);
}

TEST_CASE("B55 sizes follow from config and maxima alone", "[planner][cases]") {
  const Maxima maxima{.max_requests = 64, .max_qo_rows = 64, .max_kv_tokens = 1 << 20};
  Serving serving(named_config(), maxima);
  const std::size_t before = serving.planner.layout().total_bytes;
  for (const std::int32_t kv : {0, 1, 8192}) {
    serving.plan(Lengths(64, 1), Lengths(64, kv));
    CHECK(serving.planner.layout().total_bytes == before);
    CHECK(serving.summary.plan_bytes <= serving.planner.layout().plan_bytes);
  }
  CHECK(workspace_layout(named_config(), maxima).total_bytes == before);
}

TEST_CASE("B67 planned for 1,000 keys, then for 100,000 and a million, with every CTA at work",
          "[planner][cases]") {
  Serving serving(named_config(), {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 1 << 20});
  serving.plan({1}, {1000});
  for (const std::int32_t kv : {100000, 1000000}) {
    CHECK(busy_ctas(serving.plan({1}, {kv}), Pipeline::decode) == 132);
    CHECK(serving.summary.max_over_mean[0] < 1.1);
  }
}

TEST_CASE("B77 a window without causal reaches every key to the right", "[planner][cases]") {
  // The pieces of each query tile must reach from 333 keys left of its first row to the last key.
  for (const auto& [qo, kv] : {std::pair{300, 4096}, {1024, 1024}}) {
    const Planned planned = plan_of(named_config(), {qo}, {kv}, {.window_left = 333});
    std::map<int, std::pair<int, int>> reach;  // by row_begin, of kv head 0
    for (const WorkItem& item : PlanView(planned.bytes.view()).section(Pipeline::append).items) {
      if (item.kv_head_begin > 0) continue;
      auto& [low, high] = reach.try_emplace(item.row_begin, kv, 0).first->second;
      low = std::min(low, sequence_tile(item, item.tile_begin)),
      high = std::max(high, sequence_tile(item, item.tile_end - 1));
    }
    CHECK(int(reach.size()) == (qo * 4 + 127) / 128);
    for (const auto& [row, tiles] : reach) {
      CHECK(tiles.first == std::max(0, kv - qo + row / 4 - 333) / 64);
      CHECK(tiles.second == (kv - 1) / 64);
    }
  }
}

TEST_CASE("B85 tiles in front of a window are skipped", "[planner][cases]") {
  const Planned planned = plan_of(named_config(), {1}, {100000}, {.causal = 1, .window_left = 127});
  int tiles = 0;
  for (const WorkItem& item : PlanView(planned.bytes.view()).section(Pipeline::decode).items)
    tiles += (item.tile_end - item.tile_begin) * (item.kv_head_end - item.kv_head_begin);
  CHECK(tiles <= 8 * 3);
}

TEST_CASE("B124 work goes to as many CTAs as the device has", "[planner][cases]") {
  for (const int sms : {20, 48, 78, 132, 148})
    CHECK(busy_ctas(PlanView(plan_of(named_config(sms, sms), {1}, {200000}).bytes.view()),
                    Pipeline::decode) == sms);
}

TEST_CASE("B170 a plan grows with the tiles of query rows, not with rows times keys",
          "[planner][cases]") {
  const Planned planned = plan_of(named_config(), {96000}, {800000}, {.causal = 1});
  CHECK(planned.summary.plan_bytes < std::size_t{4} << 20);
}

TEST_CASE("B173 the copy moves what a plan uses, not what the maxima allow", "[planner][cases]") {
  Serving serving(named_config(),
                  {.max_requests = 10000, .max_qo_rows = 1 << 20, .max_kv_tokens = 1 << 24});
  serving.plan({1}, {100});
  CHECK(serving.summary.copy_bytes < 8192);
  CHECK(serving.planner.layout().plan_bytes > std::size_t{1} << 20);
}

TEST_CASE("B175 40,000 block rows are planned in milliseconds", "[planner][cases]") {
  Serving serving(named_config(),
                  {.max_requests = 40000, .max_qo_rows = 40000, .max_kv_tokens = 1 << 24});
  const Lengths qo(40000, 1), kv(40000, 300);
  const OwnedBatch batch(qo, kv, 16);
  const auto begin = std::chrono::steady_clock::now();
  serving.planner.plan(batch.view(), {}, serving.bytes.span());
  CHECK(std::chrono::steady_clock::now() - begin <
        patience() * std::chrono::milliseconds(100));  // 1 ms where nothing else runs
}

TEST_CASE("B176 pieces follow the live length, not the capacity", "[planner][cases]") {
  Serving roomy(
      named_config(),
      {.max_requests = 64, .max_qo_rows = 64, .max_kv_tokens = std::int64_t{64} * 131072});
  Serving tight(named_config(), {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 2048});
  const PlanView a = roomy.plan({1}, {2048}), b = tight.plan({1}, {2048});
  CHECK(roomy.summary.items == tight.summary.items);
  CHECK(roomy.summary.partials == tight.summary.partials);
  CHECK(busy_ctas(a, Pipeline::decode) == busy_ctas(b, Pipeline::decode));
}

TEST_CASE("B178 a kv_indptr of another batch size is a sentence, not a size", "[planner][cases]") {
  Planner planner(named_config(), {.max_requests = 8, .max_qo_rows = 8, .max_kv_tokens = 1000});
  PlanBytes bytes(planner.layout().plan_bytes);
  OwnedBatch batch(Lengths(8, 1), Lengths(8, 16), 16);
  batch.kv_indptr = {0};
  CHECK_THROWS_WITH(planner.plan(batch.view(), {}, bytes.span()),
                    "kv_indptr has 1 entries; a batch of 8 requests (as qo_indptr says) needs 9.");
}

TEST_CASE("B179 36,864 rows of blocks", "[planner][cases]") {
  PlanConfig config = named_config();
  config.num_kv_heads = config.group = 1;
  const Planned planned = plan_of(config, Lengths(36864, 1), Lengths(36864, 128));
  CHECK(planned.summary.items[0] >= 36864);
}

TEST_CASE("B28 table offsets past 2^31 entries are exact, and past 64 bits refused",
          "[planner][cases]") {
  Planner planner(named_config(), {.max_requests = 3, .max_qo_rows = 3, .max_kv_tokens = 1000});
  PlanBytes bytes(planner.layout().plan_bytes);
  const std::vector<std::int32_t> qo_indptr{0, 1, 2, 3}, kv_lens{5, 5, 5};
  Batch batch{.qo_indptr = qo_indptr, .kv_table_stride = std::int64_t{1} << 33, .kv_lens = kv_lens};
  const PlanSummary summary = planner.plan(batch, {}, bytes.span());
  CHECK(PlanView(bytes.view()).requests()[2].kv_offset == std::int64_t{1} << 34);
  CHECK(summary.num_indices == (std::int64_t{1} << 34) + 1);
  batch.kv_table_stride = std::int64_t{1} << 62;
  CHECK_THROWS_WITH(planner.plan(batch, {}, bytes.span()),
                    "kv_table_stride is 4611686018427387904; at most 274877906944 is allowed.");
}
