// heddle bench: named workloads, each checked, then timed beside the machine's ceilings. What has
// not been checked is not timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/bench_data.h"
#include "tools/bench_report.h"
#include "tools/ceilings.h"
#include "tools/gpu_timer.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/texts.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

constexpr double kWorstAllowed = 2e-2;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A workload with its Attention and its plan.
class Case {
 public:
  Case(Engine& engine, const Workload& w)
      : on_gpu_(engine.device().kind == DeviceKind::cuda), data_(engine, w) {
    const WorkloadVariant variant = variant_of(w);
    params_ = variant.params;
    const Variant composed =
        Variant::from_json(variant.json, "the workload " + w.name, engine.variants());
    engine.register_variant(composed);
    const int max_qo_len = *std::max_element(w.qo_lens.begin(), w.qo_lens.end());
    first_s_ = seconds_of([&] {
      attention_ = engine.attention({.variant = composed.name,
                                     .num_qo_heads = w.heads.num_qo_heads,
                                     .num_kv_heads = w.heads.num_kv_heads,
                                     .head_dim = w.heads.head_dim,
                                     .page_size = w.page_size,
                                     .max_qo_len = max_qo_len});
      workspace_ = attention_.workspace({.max_requests = int(w.qo_lens.size()),
                                         .max_qo_rows = w.num_qo_rows(),
                                         .max_kv_tokens = w.num_kv_tokens(),
                                         .max_qo_len = max_qo_len});
      plan();
      run(0, nullptr);
      wait();
    });
  }

  BenchRow measure() {
    const Workload& w = data_.workload();
    BenchRow row{.workload = w.name, .first_s = first_s_};
    row.err = worst_error(data_);
    if (!(row.err < kWorstAllowed)) {
      row.not_run = fmt::format("wrong result: error {:.3g} on the sampled rows, {} is allowed",
                                row.err, kWorstAllowed);
      return row;
    }
    row.plan_us = plan_us();
    row.us = run_us();
    row.tbps = w.bytes() / row.us / 1e6;
    row.tflops = w.flops() / row.us / 1e6;
    return row;
  }

 private:
  void plan() { attention_.plan(data_.batch(), workspace_, nullptr, params_); }
  void run(int layer, Stream stream) {
    attention_.run(workspace_, data_.tensors(layer), params_, stream);
  }
  void wait() const {
    if (on_gpu_) synchronize(nullptr);
  }

  double plan_us() {
    std::vector<double> times;
    for (int i = 0; i < 30; ++i) {
      wait();
      times.push_back(seconds_of([&] { plan(); }) * 1e6);
    }
    wait();
    return median(times);
  }

  double run_us() {
    const int layers = data_.workload().layers();
    if (on_gpu_) {
      std::vector<std::function<void(Stream)>> calls;
      for (int layer = 0; layer < layers; ++layer) {
        calls.push_back([this, layer](Stream stream) { run(layer, stream); });
      }
      return graph_us(calls);
    }
    std::vector<double> times;
    for (int i = 0; i < 3; ++i)
      times.push_back(seconds_of([&] { run(i % layers, nullptr); }) * 1e6);
    return median(times);
  }

  bool on_gpu_;
  BenchData data_;
  ParamValues params_;
  Attention attention_;
  Workspace workspace_;
  double first_s_ = 0;
};

BenchRow measure(Engine& engine, const Workload& w) {
  if (w.kind == "mla") return {.workload = w.name, .not_run = "MLA has no pipeline yet"};
  if (w.qo_lens.empty()) return {.workload = w.name, .not_run = "it has no request"};
  try {
    return Case(engine, w).measure();
  } catch (const Error& error) {
    return {.workload = w.name, .not_run = error.what()};
  }
}

bool starts_with_any(const std::string& name, const std::string& prefixes) {
  std::istringstream list(prefixes);
  for (std::string prefix; std::getline(list, prefix, ',');) {
    if (name.starts_with(prefix)) return true;
  }
  return prefixes.empty();
}

std::vector<Workload> chosen_workloads(const std::string& file, const std::string& only) {
  const std::string text =
      file.empty() ? std::string(embedded_text("tools/workloads.json")) : read_text_file(file);
  std::vector<Workload> workloads = read_workloads(text, file.empty() ? "the built-in list" : file);
  std::erase_if(workloads, [&](const Workload& w) { return !starts_with_any(w.name, only); });
  if (workloads.empty()) {
    fail(ErrorKind::invalid_argument,
         "No workload's name starts with `{}`; leave --only out to run them all.", only);
  }
  return workloads;
}

Ceilings ceilings_of(const DeviceInfo& device) {
  if (device.kind == DeviceKind::cuda) return measure_ceilings(device);
  Ceilings none;
  none.why_no_read = none.why_no_matmul = "the CPU device has none to be measured by";
  return none;
}

}  // namespace

int bench(const Arguments& arguments) {
  std::string file, only, device = "auto", json, beside;
  Options options("bench",
                  "Checks named workloads, then times them beside the machine's ceilings.");
  options.text(file, "--workloads", "JSON list of workloads; the built-in ones where left out");
  options.text(only, "--only", "run those whose names start with this; several with commas");
  options.text(device, "--device", "auto, cuda or cpu");
  options.text(json, "--json", "write the figures to this file");
  options.text(beside, "--beside", "JSON of a run over peers: adds the ratio to the best of them");
  if (!options.parse(arguments)) return 0;
  const std::vector<Workload> workloads = chosen_workloads(file, only);
  std::optional<BestPeers> peers;
  if (!beside.empty()) peers = best_peers(read_text_file(beside), beside);
  const BestPeers* best = peers ? &*peers : nullptr;

  Engine engine({.device = parse_device(device)});
  Progress progress(int(workloads.size()) + 1);
  progress.step("ceilings");
  const Ceilings ceilings = ceilings_of(engine.device());
  progress.clear();
  fmt::print("{}\n{}\n{}\n", engine.device().name, ceilings_line(ceilings), bench_head(best));
  std::vector<BenchRow> rows;
  bool all_right = true;
  for (const Workload& workload : workloads) {
    progress.step(workload.name);
    rows.push_back(measure(engine, workload));
    progress.clear();
    all_right = all_right && (rows.back().not_run.empty() || workload.kind == "mla");
    fmt::print("{}\n", bench_line(rows.back(), ceilings, best));
    std::fflush(stdout);
  }
  write_json(json, bench_json(engine.device().name, ceilings, rows, best));
  return all_right ? 0 : 1;
}

}  // namespace heddle::tools
