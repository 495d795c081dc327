// How even the shares are, by the cost model; the host time and the published algorithm beside it
// in hidden tests ([.bench]).
#include <chrono>
#include <numeric>
#include <queue>

#include <fmt/format.h>

#include "planner/cost.h"
#include "planner/cost_table.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

struct Balance {
  double max_over_mean;
  double busiest;
};

// Adds the items' costs anew; the split counts for itself.
Balance balance_of(const PlanConfig& config, Planned& planned, Pipeline pipeline) {
  const std::vector<double> costs =
      cta_costs(config.of(pipeline), PlanView(planned.bytes.span()).section(pipeline));
  const double busiest = *std::max_element(costs.begin(), costs.end());
  return {busiest * static_cast<double>(costs.size()) / std::accumulate(costs.begin(), costs.end(), 0.0), busiest};
}

// The published algorithm in the same cost model: chunks of at most ceil(all tiles / CTAs) tiles,
// the costliest first to the least loaded CTA.
Balance published(const PlanConfig& config, const std::vector<std::int32_t>& kv) {
  const PipelineShape& shape = config.of(Pipeline::decode);
  const CostModel& cost = shape.cost;
  std::int64_t all = 0;
  for (const std::int32_t n : kv) all += (n + shape.tile_kv - 1) / shape.tile_kv * std::int64_t{config.num_kv_heads};
  const std::int64_t limit = (all + shape.num_ctas - 1) / shape.num_ctas;
  std::vector<double> chunks;
  for (const std::int32_t n : kv) {
    const std::int64_t tiles = (n + shape.tile_kv - 1) / shape.tile_kv;
    for (int head = 0; head < config.num_kv_heads; ++head) {
      for (std::int64_t begin = 0; begin < tiles; begin += limit) {
        chunks.push_back(cost.per_item + cost.per_tile * static_cast<double>(std::min(limit, tiles - begin)) +
                         (tiles > limit ? cost.per_partial : 0.0));
      }
    }
  }
  std::sort(chunks.rbegin(), chunks.rend());
  std::priority_queue<double, std::vector<double>, std::greater<>> loads;
  for (int cta = 0; cta < shape.num_ctas; ++cta) loads.push(0);
  double busiest = 0;
  for (const double chunk : chunks) {
    const double load = loads.top() + chunk;
    loads.pop();
    loads.push(load);
    busiest = std::max(busiest, load);
  }
  return {busiest * shape.num_ctas / std::accumulate(chunks.begin(), chunks.end(), 0.0), busiest};
}

std::vector<std::int32_t> ones(const std::vector<std::int32_t>& kv) { return std::vector<std::int32_t>(kv.size(), 1); }

// Decode of head_dim 128 on 132 SMs, at the prices of an H200.
PlanConfig priced_config(bool batch_invariant) {
  PlanConfig config = named_config(264);
  config.pipeline[0].cost = cost_model(Pipeline::decode, {.rows = 16, .kv = 64, .ctas_per_sm = 2}, 128);
  config.batch_invariant = batch_invariant;
  return config;
}

Balance balance_of(bool batch_invariant, std::string_view name) {
  const PlanConfig config = priced_config(batch_invariant);
  const std::vector<std::int32_t> kv = parse_lengths(name);
  Planned planned = plan_of(config, ones(kv), kv);
  return balance_of(config, planned, Pipeline::decode);
}

constexpr std::string_view kMoreBatches[] = {"64x1024", "256x1024", "1x1024", "1x8192", "1x131072", "16x8192", "128x2048"};
constexpr std::string_view kLargeBatches[] = {"256x4096", "10000x4096", "zipf:10000:65536", "uniform:10000:256:16384"};

}  // namespace

TEST_CASE("the named batches are balanced", "[planner][balance]") {
  for (const int ctas : {132, 264}) {
    const PlanConfig config = named_config(ctas);
    for (const std::string_view name : kNamedBatches) {
      INFO(name << " on " << ctas << " CTAs");
      const std::vector<std::int32_t> kv = parse_lengths(name);
      Planned planned = plan_of(config, ones(kv), kv);
      const Balance balance = balance_of(config, planned, Pipeline::decode);
      CHECK(balance.max_over_mean <= 1.03);
      CHECK(planned.summary.max_over_mean[0] == Approx(balance.max_over_mean).epsilon(1e-6));
    }
  }
}

TEST_CASE("causal prefill is balanced", "[planner][balance]") {
  const PlanConfig config = named_config();
  for (const std::string_view name : {"1x16384", "32x2048", "1x8000+7x500+3x33"}) {
    INFO(name);
    const std::vector<std::int32_t> lens = parse_lengths(name);
    Planned planned = plan_of(config, lens, lens, {.causal = 1});
    CHECK(balance_of(config, planned, Pipeline::append).max_over_mean <= 1.03);
  }
}

TEST_CASE("query tiles of a long prompt are dealt head by head, so that CTAs are at the same keys", "[planner][balance]") {
  const PlanConfig config = named_config();
  const auto [qo, heads] = GENERATE(table<std::string_view, int>({{"1x2048", 8}, {"1x16384", 8}, {"2x8192", 16}}));
  INFO(qo);
  Planned planned = plan_of(config, parse_lengths(qo), parse_lengths(qo == "1x2048" ? "1x16384" : qo), {.causal = 1});
  CHECK(balance_of(config, planned, Pipeline::append).max_over_mean <= 1.01);
  // Where each CTA stands, in heads of requests one behind the other, once it has done a share of its work.
  const auto section = PlanView(planned.bytes.view()).section(Pipeline::append);
  const std::vector<double> costs = cta_costs(config.of(Pipeline::append), section);
  for (const double share : {0.1, 0.3, 0.5, 0.6}) {
    int low = heads, high = 0;
    for (int cta = 0; cta < section.num_ctas(); ++cta) {
      double left = share * costs[std::size_t(cta)];
      const WorkItem* at = nullptr;
      for (const WorkItem& item : section.items_of(cta)) {
        at = &item;
        left -= cost_of(config.of(Pipeline::append), item);
        if (left < 0) break;
      }
      REQUIRE(at != nullptr);
      const int head = at->request * config.num_kv_heads + at->kv_head_begin;
      low = std::min(low, head), high = std::max(high, head);
    }
    INFO(share << " of the work");
    CHECK(high - low <= (qo == "1x2048" ? 3 : 1));
  }
}

TEST_CASE("streams of a short prompt stay whole where that is more even than cuts", "[planner][balance]") {
  const PlanConfig config = named_config();
  for (const std::string_view name : {"1x1024", "1x2048", "4x700"}) {
    INFO(name);
    const std::vector<std::int32_t> lens = parse_lengths(name);
    Planned planned = plan_of(config, lens, lens, {.causal = 1});
    CHECK(planned.summary.partials[1] == 0);
    CHECK(planned.summary.max_over_mean[1] <= 1.07);
    CHECK(balance_of(config, planned, Pipeline::append).max_over_mean == Approx(planned.summary.max_over_mean[1]).epsilon(1e-3));
  }
  // Cut, as before: fewer streams than CTAs, and streams of which a whole one more or less is much.
  for (const auto& [qo, kv] : {std::pair{"1x64", "1x16384"}, {"1x2048", "1x16384"}}) {
    INFO(qo);
    CHECK(plan_of(config, parse_lengths(qo), parse_lengths(kv), {.causal = 1}).summary.partials[1] >= 50);
  }
}

TEST_CASE("10,000 requests of 8 heads copy one item each, and three a border at most", "[planner][balance]") {
  const std::vector<std::int32_t> kv = parse_lengths("10000x300");
  const Planned planned = plan_of(named_config(), ones(kv), kv);
  CHECK(planned.summary.items[0] >= 10000);
  CHECK(planned.summary.items[0] <= 10400);
  CHECK(planned.summary.copy_bytes <= 10400 * sizeof(WorkItem) + 16384);
}

TEST_CASE("a small batch spreads over as many CTAs as it has tiles", "[planner][balance]") {
  const PlanConfig config = named_config(264);
  Planned planned = plan_of(config, {1}, {1024});
  CHECK(planned.summary.items[0] == 128);  // 16 tiles, 8 heads
  CHECK(balance_of(config, planned, Pipeline::decode).busiest == 2.5);  // one tile, one piece
  Planned tiny = plan_of(config, {1}, {64});
  CHECK(tiny.summary.items[0] == 8);
  CHECK(tiny.summary.partials[0] == 0);
}

TEST_CASE("pieces are worth their own cost", "[planner][balance]") {
  PlanConfig config = named_config();
  config.pipeline[0].cost = {.per_item = 6.0, .per_tile = 1.0, .per_partial = 2.0};
  const std::vector<std::int32_t> kv = parse_lengths("zipf:256:65536");
  Planned planned = plan_of(config, ones(kv), kv);
  for (const WorkItem& item : PlanView(planned.bytes.span()).section(Pipeline::decode).items) {
    if (item.partial >= 0) CHECK(item.tile_end - item.tile_begin >= 8);
  }
}

TEST_CASE("batch_invariant: the busiest CTA stays within 5 % of the default's, 10 % on skewed batches",
          "[planner][balance]") {
  const std::pair<std::string_view, double> least[] = {
      {"64x4096", 0.95},        {"128x2048", 0.95},          {"256x1024", 0.95},
      {"16x8192", 0.95},        {"1x131072", 0.95},          {"10000x300", 0.95},
      {"zipf:256:65536", 0.90}, {"1x131072+255x1024", 0.90}, {"uniform:64:256:16384", 0.90}};
  for (const auto& [name, ratio] : least) {
    INFO(name);
    CHECK(balance_of(false, name).busiest / balance_of(true, name).busiest >= ratio);
  }
}

TEST_CASE("batch_invariant: how many CTAs one request reaches", "[planner][balance]") {
  const auto busy_ctas = [](int kv_len) {
    const Planned planned = plan_of(priced_config(true), {1}, {kv_len});
    const auto section = PlanView(planned.bytes.view()).section(Pipeline::decode);
    int busy = 0;
    for (int cta = 0; cta < section.num_ctas(); ++cta) busy += !section.items_of(cta).empty();
    return busy;
  };
  CHECK(busy_ctas(1024) == 8);  // not cut: chunks.h says why
  CHECK(busy_ctas(8192) == 48);
  CHECK(busy_ctas(131072) == 256);  // 512 chunks, two a CTA
}

TEST_CASE("equal lengths give equal bytes, wherever the pages are", "[planner]") {
  const std::vector<std::int32_t> kv = parse_lengths("zipf:50:9000");
  Planned first = plan_of(named_config(), ones(kv), kv), second = plan_of(named_config(), ones(kv), kv);
  std::fill(second.bytes.span().begin(), second.bytes.span().end(), std::byte{0xa5});
  Planner planner(named_config(), maxima_of(ones(kv), kv));
  const OwnedBatch batch(ones(kv), kv, 16);
  PlanBytes elsewhere(planner.layout().plan_bytes);
  planner.plan(OwnedBatch({1}, {500}, 16).view(), {}, elsewhere.span());  // the past must not matter
  const std::size_t bytes = planner.plan(batch.view(), {}, second.bytes.span()).plan_bytes;
  CHECK(bytes == first.summary.plan_bytes);
  CHECK(std::equal(first.bytes.span().begin(), first.bytes.span().begin() + bytes, second.bytes.span().begin()));
}

TEST_CASE("cost model: both algorithms", "[.bench]") {
  for (const int ctas : {132, 264}) {
    const PlanConfig config = named_config(ctas);
    const auto print = [&](std::string_view name) {
      const std::vector<std::int32_t> kv = parse_lengths(name);
      Planned planned = plan_of(config, ones(kv), kv);
      const Balance here = balance_of(config, planned, Pipeline::decode), there = published(config, kv);
      fmt::print("{:4} CTAs {:20} contiguous max/mean {:.4f} busiest {:8.1f}   published max/mean {:.4f} busiest {:8.1f}\n",
                 ctas, name, here.max_over_mean, here.busiest, there.max_over_mean, there.busiest);
    };
    for (const std::string_view name : kNamedBatches) print(name);
    for (const std::string_view name : kMoreBatches) print(name);
  }
}

TEST_CASE("cost model: batch_invariant against the default", "[.bench]") {
  const auto print = [](std::string_view name) {
    const Balance plain = balance_of(false, name), invariant = balance_of(true, name);
    fmt::print("{:24} max/mean {:.4f} against {:.4f}   speed of the default {:.4f}\n", name, invariant.max_over_mean,
               plain.max_over_mean, plain.busiest / invariant.busiest);
  };
  for (const std::string_view name : kNamedBatches) print(name);
  for (const std::string_view name : kMoreBatches) print(name);
}

TEST_CASE("host time of a plan", "[.bench]") {
  using Clock = std::chrono::steady_clock;
  for (const bool batch_invariant : {false, true}) {
    const PlanConfig config = priced_config(batch_invariant);
    const auto print = [&](std::string_view name) {
      const std::vector<std::int32_t> kv = parse_lengths(name);
      Planner planner(config, maxima_of(ones(kv), kv));
      const OwnedBatch batch(ones(kv), kv, 16);
      PlanBytes bytes(planner.layout().plan_bytes);
      PlanSummary summary;
      std::vector<double> us;
      for (int i = 0; i < 2000; ++i) {
        const auto begin = Clock::now();
        summary = planner.plan(batch.view(), {}, bytes.span());
        us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      }
      std::sort(us.begin(), us.end());
      fmt::print("{:9} {:24} {:7} items {:6} partials {:9} bytes  {:8.2f} us median {:8.2f} us least\n",
                 batch_invariant ? "invariant" : "default", name,
                 summary.items[0], summary.partials[0], summary.copy_bytes, us[us.size() / 2], us[0]);
    };
    for (const std::string_view name : kNamedBatches) print(name);
    for (const std::string_view name : kMoreBatches) print(name);
    for (const std::string_view name : kLargeBatches) print(name);
  }
}
