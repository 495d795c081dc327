#include "tools/bench_graph.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/bench_case.h"
#include "tools/bench_report.h"
#include "tools/gpu_timer.h"

namespace heddle::tools {
namespace {

constexpr int kFew = 8, kMany = 256, kKeys = 4096;
constexpr int kFillerKeys = 64;  // of each request that is gone when the graph is replayed
constexpr int kRounds = 5, kReplays = 15;

Workload many_requests() {
  Workload w;
  w.name = "graph_maxima";
  w.kind = "decode";
  w.qo_lens.assign(kMany, 1);
  w.kv_lens.assign(kFew, kKeys);
  w.kv_lens.resize(kMany, kFillerKeys);
  w.heads = {32, 8, 128};
  w.page_size = 16;
  return w;
}

// One Attention's graph, captured for the first `max_requests` and then replanned for the few.
class Captured {
 public:
  Captured(Attention& attention, BenchData& data, int max_requests)
      : attention_(attention),
        data_(data),
        workspace_(attention.workspace({.max_requests = max_requests,
                                        .max_qo_rows = max_requests,
                                        .max_kv_tokens = std::int64_t{max_requests} * kKeys,
                                        .max_qo_len = 1})),
        graph_(calls(max_requests)),
        row_{.max_requests = max_requests} {
    attention_.plan(data_.first_requests(kFew), workspace_, graph_.stream());
  }

  OutputError check(const WorkloadVariant& rule) {
    data_.clear_output();
    synchronize(nullptr);  // the graph's stream does not wait for that copy
    graph_.replay();
    const OutputError found = output_error(data_, rule, kFew);
    row_.err = found.error;
    return found;
  }
  double us() const { return graph_.us(kReplays); }
  const MaximaRow& row() const { return row_; }

 private:
  // Plans for as many as the maxima allow; the graph captures the calls afterwards.
  std::vector<std::function<void(Stream)>> calls(int requests) {
    attention_.plan(data_.first_requests(requests), workspace_);
    synchronize(nullptr);  // the graph's stream does not wait for that copy either
    std::vector<std::function<void(Stream)>> calls;
    for (int layer = data_.workload().layers() - 1; layer >= 0; --layer) {  // 0 is checked
      calls.push_back([this, layer](Stream stream) {
        attention_.run(workspace_, data_.tensors(layer), {}, stream);
      });
    }
    return calls;
  }

  Attention& attention_;
  BenchData& data_;
  Workspace workspace_;
  TimedGraph graph_;
  MaximaRow row_;
};

GraphMaxima measure_on_gpu(Engine& engine, RandomBlocks& blocks) {
  const Workload w = many_requests();
  const WorkloadVariant rule = variant_of(engine, w);
  engine.register_variant(rule.variant);
  BenchData data(blocks, w);
  Attention attention = engine.attention(config_of(w, rule.variant.name));
  Captured few(attention, data, kFew), many(attention, data, kMany);
  for (Captured* captured : {&few, &many}) {
    const OutputError found = captured->check(rule);
    if (!found.ok()) {
      return {.not_run = fmt::format("with maxima of {} requests a {}",
                                     captured->row().max_requests, wrong_result(found))};
    }
  }
  std::vector<double> few_us, many_us;  // in turn, so that a change of clocks meets both
  for (int round = 0; round < kRounds; ++round) {
    few_us.push_back(few.us());
    many_us.push_back(many.us());
  }
  GraphMaxima maxima{.rows = {few.row(), many.row()}};
  maxima.rows[0].us = median(few_us);
  maxima.rows[1].us = median(many_us);
  maxima.ratio = maxima.rows[1].us / maxima.rows[0].us;
  return maxima;
}

}  // namespace

GraphMaxima measure_graph_maxima(Engine& engine, RandomBlocks& blocks) {
  if (engine.device().kind != DeviceKind::cuda)
    return {.not_run = "a graph is captured on a GPU only"};
  try {
    return measure_on_gpu(engine, blocks);
  } catch (const Error& error) {
    return {.not_run = error.what()};
  }
}

std::string graph_maxima_table(const GraphMaxima& maxima) {
  std::string table = fmt::format("one graph, {} x {} keys planned\n{:<14}{:>10}{:>9}\n", kFew,
                                  kKeys, "max requests", "us", "err");
  if (!maxima.not_run.empty()) return table + fmt::format("not run: {}\n", maxima.not_run);
  for (const MaximaRow& row : maxima.rows)
    table += fmt::format("{:<14}{:>10.2f}{:>9.1e}\n", row.max_requests, row.us, row.err);
  return table + fmt::format("ratio {:.3f}\n", maxima.ratio);
}

nlohmann::ordered_json graph_maxima_json(const GraphMaxima& maxima) {
  if (!maxima.not_run.empty()) return {{"error", maxima.not_run}};
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const MaximaRow& row : maxima.rows) {
    rows.push_back({{"max_requests", row.max_requests},
                    {"us", rounded(row.us, 2)},
                    {"err", fmt::format("{:.1e}", row.err)}});
  }
  return {
      {"requests", kFew}, {"kv_len", kKeys}, {"rows", rows}, {"ratio", rounded(maxima.ratio, 3)}};
}

}  // namespace heddle::tools
