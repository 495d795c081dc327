#include "tools/bench_host.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "planner/lengths.h"
#include "runtime/driver.h"
#include "tools/bench_case.h"
#include "tools/bench_load.h"
#include "tools/bench_report.h"
#include "tools/host_timer.h"

namespace heddle::tools {
namespace {

constexpr int kSamples = 30;
constexpr int kQueued = 200;  // launches before a wait; a driver's queue holds about a thousand

AttentionConfig decode_config(const std::string& variant) {
  return {.variant = variant,
          .num_qo_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .page_size = 16,
          .max_qo_len = 1};
}

// plan() as a serving loop calls it, with its copy put on the stream, and the planner's part of it.
void add_plans(Engine& engine, std::vector<HostCost>& costs) {
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  Attention attention = engine.attention(decode_config("softmax"));
  for (const char* kv : {"64x4096", "zipf:256:65536", "10000x300"}) {
    const std::vector<std::int32_t> kv_lens = parse_lengths(kv);
    const int requests = int(kv_lens.size());
    const LengthsOnly lengths(std::vector<std::int32_t>(kv_lens.size(), 1), kv_lens, 16);
    const Maxima maxima{.max_requests = requests,
                        .max_qo_rows = requests,
                        .max_kv_tokens = lengths.kv_tokens,
                        .max_qo_len = 1};
    Workspace workspace = attention.workspace(maxima);
    const auto settle = [&] {
      if (on_gpu) synchronize(nullptr);
    };
    const auto plan = [&] { attention.plan(lengths.batch(), workspace); };
    plan();
    costs.push_back({fmt::format("plan_{}", requests), median_us(kSamples, settle, plan),
                     fmt::format("Attention::plan of {}, its copy queued", kv)});
    Planner planner(attention.plan_config(), maxima);
    std::vector<std::byte> bytes(planner.layout().plan_bytes);
    const auto plan_only = [&] { planner.plan(lengths.batch(), {}, bytes); };
    plan_only();
    costs.push_back({fmt::format("planner_{}", requests),
                     median_us(
                         kSamples, [] {}, plan_only),
                     fmt::format("of that, the planner alone", kv)});
    settle();
  }
}

// run() where nobody waits for the device: the time until the call comes back.
void add_run(Engine& engine, RandomBlocks& blocks, const std::string& name,
             const std::string& variant, const ParamValues& params, std::vector<HostCost>& costs) {
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  Workload w;
  w.name = name;
  w.kind = "decode";
  w.qo_lens = {1};
  w.kv_lens = {16};  // so short that the device keeps up
  w.heads = {32, 8, 128};
  w.page_size = 16;
  w.max_layers = 2;
  w.variant = variant;
  w.params = params;
  settle_variant(engine, w);
  BenchCase work(engine, blocks, w);
  const int calls = on_gpu ? kQueued : 5;
  const double us = median_us(
      9, [&] { work.wait(); },
      [&] {
        for (int i = 0; i < calls; ++i) work.run(0, nullptr);
      });
  work.wait();
  const std::string given = params.empty() ? "" : ", its params given";
  const std::string what =
      on_gpu ? "launches queued without waiting" : "work and all: the CPU device has no queue";
  costs.push_back(
      {name, us / calls, fmt::format("Attention::run of {}{}, {}", variant, given, what)});
}

}  // namespace

std::vector<HostCost> measure_host(Engine& engine, RandomBlocks& blocks) {
  std::vector<HostCost> costs;
  add_plans(engine, costs);
  add_run(engine, blocks, "run", "softmax", {}, costs);
  add_run(engine, blocks, "run_gemma2", "gemma2", {}, costs);
  add_run(engine, blocks, "run_gemma2_params", "gemma2", {{"cap", 50}, {"window", 1023}}, costs);
  add_loads(engine, decode_config("softmax"), costs);
  return costs;
}

std::string host_table(const std::vector<HostCost>& costs) {
  std::string table = fmt::format("{:<20}{:>12}\n", "host cost", "us");
  for (const HostCost& cost : costs) {
    table += cost.not_run.empty()
                 ? fmt::format("{:<20}{:>12.2f}  {}\n", cost.cost, cost.us, cost.about)
                 : fmt::format("{:<20}{:>12}  not run: {}\n", cost.cost, "-", cost.not_run);
  }
  return table;
}

nlohmann::ordered_json host_json(const std::vector<HostCost>& costs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const HostCost& cost : costs) {
    nlohmann::ordered_json& entry = list.emplace_back(nlohmann::ordered_json{{"cost", cost.cost}});
    if (cost.not_run.empty()) {
      entry["us"] = rounded(cost.us, 3);
      entry["about"] = cost.about;
    } else {
      entry["error"] = cost.not_run;
    }
  }
  return list;
}

}  // namespace heddle::tools
