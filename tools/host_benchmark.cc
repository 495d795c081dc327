// Host costs that a serving loop pays: one plan() of a batch, and making an
// Attention that is in the cache. Google Benchmark prints them.
#include <benchmark/benchmark.h>

#include "engine/engine.h"
#include "planner/cost_table.h"
#include "planner/lengths.h"
#include "planner/plan.h"
#include "tools/lengths_only.h"

namespace heddle::tools {
namespace {

PlanConfig decode_on_132_sms() {
  PlanConfig config{.num_kv_heads = 8, .group = 4, .head_dim = 128, .page_size = 16};
  config.pipeline[0] = {.present = true, .num_ctas = 264, .tile_rows = 16, .tile_kv = 64};
  config.pipeline[0].cost = cost_model(Pipeline::decode, {.rows = 16, .kv = 64, .ctas_per_sm = 2}, 128);
  return config;
}

void plan_batch(benchmark::State& state, const char* kv) {
  const std::vector<std::int32_t> kv_lens = parse_lengths(kv);
  const int requests = int(kv_lens.size());
  const LengthsOnly lengths(std::vector<std::int32_t>(kv_lens.size(), 1), kv_lens, 16);
  Planner planner(
      decode_on_132_sms(),
      {.max_requests = requests, .max_qo_rows = requests, .max_kv_tokens = lengths.kv_tokens});
  std::vector<std::byte> bytes(planner.layout().plan_bytes);
  const Batch batch = lengths.batch();
  for (auto _ : state) benchmark::DoNotOptimize(planner.plan(batch, {}, bytes));
}

BENCHMARK_CAPTURE(plan_batch, even_64, "64x4096");
BENCHMARK_CAPTURE(plan_batch, one_long_255_short, "1x131072+255x1024");
BENCHMARK_CAPTURE(plan_batch, zipf_256, "zipf:256:65536");
BENCHMARK_CAPTURE(plan_batch, many_10000, "10000x300");

// Making an Attention that is in the cache already: what loading a second model of one kind costs.
void make_attention(benchmark::State& state) {
  Engine engine({.device = DeviceKind::cpu});
  const AttentionConfig config{
      .variant = "gemma2", .num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  for (auto _ : state) benchmark::DoNotOptimize(engine.attention(config));
}
BENCHMARK(make_attention);

}  // namespace
}  // namespace heddle::tools

BENCHMARK_MAIN();
