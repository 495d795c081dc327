// Shared prefixes in the plan: groups are exact, and every row sees every key exactly once.
#include <random>

#include "planner/plan_view.h"
#include "planner/prefixes.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

PlanConfig sharing_config(double cost = 0) {
  PlanConfig config = named_config(7, 5);
  config.pipeline[0].tile_kv = 96;
  config.share_prefixes = true;
  config.sharing_cost = cost;
  return config;
}

// Requests whose page tables agree for a while with that of the one in front, or not at all.
struct Tables {
  std::vector<std::int32_t> qo, kv, ids;

  Tables(std::mt19937& random, int page_size) {
    const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::int32_t next_id = 0, last_begin = 0, last_pages = 0;
    for (int r = 0, n = 1 + below(20); r < n; ++r) {
      qo.push_back(below(8) == 0 ? 0 : below(12) == 0 ? 30 : 1 + below(4));
      kv.push_back(below(10) == 0 ? 0 : 1 + below(3000));
      const auto pages = (kv.back() + page_size - 1) / page_size;
      const auto begin = static_cast<std::int32_t>(ids.size());
      const int same = below(3) == 0 ? 0 : below(std::min<int>(pages, last_pages) + 1);
      for (int i = 0; i < pages; ++i) ids.push_back(i < same ? ids[static_cast<std::size_t>(last_begin + i)] : next_id++);
      last_begin = begin, last_pages = pages;
    }
  }
};


}  // namespace

TEST_CASE("prefixes: groups are exact and apart, and rows see every key once", "[prefixes]") {
  std::mt19937 random(5);
  int groups = 0;
  for (int i = 0; i < 400; ++i) {
    const PlanConfig config = sharing_config();
    const Tables tables(random, config.page_size);
    const OwnedBatch owned(tables.qo, tables.kv, config.page_size);
    Batch batch = owned.view();
    batch.kv_indices = tables.ids;
    Planner planner(config, maxima_of(tables.qo, tables.kv));
    PlanBytes bytes(planner.layout().plan_bytes);
    const MaskBounds mask{.causal = i % 2};
    const PlanSummary summary = planner.plan(batch, mask, bytes.span());
    groups += summary.shared_prefixes;

    const PlanView view(bytes.view());
    // Of each request, KV tiles of its own over all heads, and where its own keys begin.
    std::vector<std::int64_t> own(tables.qo.size()), skipped(tables.qo.size(), -1);
    for (const WorkItem& item : view.section(Pipeline::decode).items) {
      const auto r = static_cast<std::size_t>(item.request);
      own[r] += std::int64_t{item.tile_end - item.tile_begin} * (item.kv_head_end - item.kv_head_begin);
      const std::int64_t skip = (item.kv_offset - owned.kv_indptr[r]) * config.page_size;
      REQUIRE((skipped[r] < 0 || skipped[r] == skip));
      REQUIRE(item.kv_len == tables.kv[r] - skip);
      skipped[r] = skip;
    }
    std::vector<std::int64_t> shared(tables.qo.size());  // of the group that begins there, packed rows x KV tiles
    for (const WorkItem& item : view.section(Pipeline::append).items)
      if (item.request < 0)
        shared[static_cast<std::size_t>(-1 - item.request)] +=
            std::int64_t{item.tile_end - item.tile_begin} * (item.kv_head_end - item.kv_head_begin) * item.num_rows;

    for (std::size_t r = 0; r < tables.qo.size(); ++r) {
      const std::int64_t rows = std::int64_t{tables.qo[r]} * config.group;
      if (rows == 0 || rows > config.max_decode_rows) {
        REQUIRE(skipped[r] <= 0);
        continue;
      }
      REQUIRE(own[r] == (tables.kv[r] - skipped[r] + 95) / 96 * config.num_kv_heads);
      if (skipped[r] == 0 || (r > 0 && shared[r] == 0)) continue;
      // The group of r: as far as the same keys are skipped and the pages are those of r.
      std::size_t end = r;
      std::int64_t group_rows = 0;
      while (end < tables.qo.size() && skipped[end] == skipped[r] && (end == r || shared[end] == 0)) {
        for (std::int64_t page = 0; page < skipped[r] / config.page_size; ++page)
          REQUIRE(tables.ids[static_cast<std::size_t>(owned.kv_indptr[end] + page)] ==
                  tables.ids[static_cast<std::size_t>(owned.kv_indptr[r] + page)]);
        group_rows += std::int64_t{tables.qo[end++]} * config.group;
      }
      REQUIRE(end > r + 1);
      REQUIRE(skipped[r] % 64 == 0);
      REQUIRE(shared[r] == group_rows * (skipped[r] / 64) * config.num_kv_heads);
    }
  }
  CHECK(groups > 150);
}

TEST_CASE("prefixes: nothing is shared where that costs more, or where a window tells rows apart", "[prefixes]") {
  const std::vector<std::int32_t> qo(6, 1), kv(6, 2000);
  const OwnedBatch owned(qo, kv, 16);
  std::vector<std::int32_t> ids;
  for (int r = 0; r < 6; ++r)
    for (int page = 0; page < 125; ++page) ids.push_back(page);
  Batch batch = owned.view();
  batch.kv_indices = ids;
  const auto shared = [&](double cost, const MaskBounds& mask) {
    Planner planner(sharing_config(cost), maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);
    return planner.plan(batch, mask, bytes.span());
  };
  const PlanSummary found = shared(0, {});
  CHECK(found.shared_prefixes == 1);
  CHECK(found.shared_keys == 1984 * 5);  // whole tiles of 64 in front of the last key
  CHECK(shared(1e9, {}).shared_prefixes == 0);
  CHECK(shared(0, {.causal = 1, .window_left = 5000}).shared_prefixes == 0);
  CHECK(shared(0, {.causal = 1, .sink = 4}).shared_prefixes == 0);
}

TEST_CASE("prefixes: page ids that are too few, or that nobody reads, are refused", "[prefixes]") {
  const std::vector<std::int32_t> qo{1, 1}, kv{100, 100}, ids(13);
  const OwnedBatch owned(qo, kv, 16);
  Batch batch = owned.view();
  batch.kv_indices = ids;
  PlanConfig config = sharing_config();
  const auto refusal = [&] {
    Planner planner(config, maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);
    try {
      planner.plan(batch, {}, bytes.span());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  CHECK(refusal() == "kv_indices has 13 entries; this batch reaches 14.");
  config.share_prefixes = false;
  CHECK(refusal() == "The batch gives 13 page ids in kv_indices, which only a plan with share_prefixes reads.");
}
