// heddle bench: named workloads, each checked, then timed beside the machine's ceilings. What has
// not been checked is not timed.
#include <cstdio>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "tools/bench_append.h"
#include "tools/bench_case.h"
#include "tools/bench_graph.h"
#include "tools/bench_growth.h"
#include "tools/bench_host.h"
#include "tools/ceilings.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/texts.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

constexpr int kFewestKeys = 128;  // of the first row of --growth
constexpr int kMostKeysOnGpu = 1024 * 2048, kMostKeysOnCpu = 8192;

// A word of --only begins a row's name or is its table's; without --only the rows of no table run.
bool is_wanted(const Workload& w, const std::string& only) {
  if (only.empty()) return w.table.empty();
  std::istringstream list(only);
  for (std::string word; std::getline(list, word, ',');)
    if (w.name.starts_with(word) || (!w.table.empty() && word == w.table)) return true;
  return false;
}

// What was asked for.
struct Wanted {
  std::string file, only, device = "auto", json, beside;
  bool growth = false, graph_maxima = false, host = false, append = false;
  bool batch_invariant = false;
  int growth_keys = 0;

  // The tables of their own take the place of the workloads, unless some are asked for too.
  bool workloads() const {
    return !file.empty() || !only.empty() || !(growth || graph_maxima || host || append);
  }
};

std::vector<Workload> chosen_workloads(Engine& engine, const Wanted& wanted) {
  if (!wanted.workloads()) return {};
  const std::string text = wanted.file.empty() ? std::string(embedded_text("tools/workloads.json"))
                                               : read_text_file(wanted.file);
  std::vector<Workload> workloads =
      read_workloads(text, wanted.file.empty() ? "the built-in list" : wanted.file);
  std::erase_if(workloads, [&](const Workload& w) { return !is_wanted(w, wanted.only); });
  if (workloads.empty()) {
    fail(ErrorKind::invalid_argument,
         "No workload's name starts with `{}`; leave --only out to run them all.", wanted.only);
  }
  for (Workload& workload : workloads) {
    settle_variant(engine, workload);
    workload.batch_invariant = workload.batch_invariant || wanted.batch_invariant;
  }
  return workloads;
}

std::vector<Growth> chosen_growth(const Engine& engine, const Wanted& wanted) {
  if (!wanted.growth) return {};
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  const int most_keys =
      wanted.growth_keys ? wanted.growth_keys : (on_gpu ? kMostKeysOnGpu : kMostKeysOnCpu);
  std::vector<Growth> tables = growth_rows(most_keys);
  for (Growth& table : tables)
    for (GrowthRow& row : table.rows) row.row.batch_invariant = wanted.batch_invariant;
  return tables;
}

Ceilings ceilings_of(const DeviceInfo& device) {
  if (device.kind == DeviceKind::cuda) return measure_ceilings(device);
  Ceilings none;
  none.why_no_read = none.why_no_matmul = "the CPU device has none to be measured by";
  return none;
}

// Finds the plain row of every other decode over the same shape. `rows` stand as `workloads` do.
void compare_to_plain(const std::vector<Workload>& workloads, std::vector<BenchRow>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (workloads[i].is_plain_decode() || !rows[i].not_run.empty()) continue;
    for (std::size_t j = 0; j < rows.size(); ++j) {
      if (!workloads[j].is_plain_decode() || !workloads[j].has_shape_of(workloads[i])) continue;
      if (!rows[j].not_run.empty()) continue;
      rows[i].plain = rows[j].workload;
      rows[i].of_plain = rows[i].tbps / rows[j].tbps;
    }
  }
}

// Finds the row that another names, where both have run. `rows` stand as `workloads` do.
void compare_beside(const std::vector<Workload>& workloads, std::vector<BenchRow>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const BenchRow& other : rows) {
      if (other.workload != workloads[i].beside || !other.not_run.empty() || !rows[i].not_run.empty()) continue;
      BenchRow& row = rows[i];
      row.beside = other.workload;
      row.beside_us = other.us, row.beside_plan_us = other.plan_us;
      row.of_time = row.us / other.us;
      row.of_work = workloads[i].kind == "decode" ? row.bytes / other.bytes
                                                  : row.tflops * row.us / (other.tflops * other.us);
    }
  }
}

// One run of the verb: what was chosen, measured and printed table by table.
class Bench {
 public:
  explicit Bench(const Wanted& wanted)
      : wanted_(wanted),
        engine_({.device = parse_device(wanted.device)}),
        workloads_(chosen_workloads(engine_, wanted)),
        growth_(chosen_growth(engine_, wanted)),
        progress_(num_steps()) {
    if (!wanted.beside.empty()) peers_ = best_peers(read_text_file(wanted.beside), wanted.beside);
  }

  // False: something was wrong or did not run.
  bool run() {
    progress_.step("ceilings");
    ceilings_ = ceilings_of(engine_.device());
    progress_.clear();
    fmt::print("{}\n{}\n", engine_.device().name, ceilings_line(ceilings_));
    if (wanted_.batch_invariant) fmt::print("every row is batch_invariant\n");
    json_ = bench_json(engine_.device().name, ceilings_, {}, best());
    if (!workloads_.empty()) run_workloads();
    for (Growth& growth : growth_) run_growth(growth);
    if (wanted_.graph_maxima) run_graph_maxima();
    if (wanted_.host) run_host();
    if (wanted_.append) run_append();
    write_json(wanted_.json, json_);
    return all_right_;
  }

 private:
  const BestPeers* best() const { return peers_ ? &*peers_ : nullptr; }

  int num_steps() const {
    std::size_t steps = 1 + workloads_.size() + wanted_.graph_maxima + wanted_.host + wanted_.append;
    for (const Growth& growth : growth_) steps += growth.rows.size();
    return int(steps);
  }

  void run_workloads() {
    fmt::print("{}\n", bench_head(best()));
    std::vector<BenchRow> rows;
    for (const Workload& workload : workloads_) {
      progress_.step(workload.name);
      rows.push_back(measure(engine_, blocks_, workload));
      progress_.clear();
      all_right_ = all_right_ && (rows.back().not_run.empty() || workload.kind == "mla");
      fmt::print("{}\n", bench_line(rows.back(), ceilings_, best()));
      std::fflush(stdout);
    }
    compare_to_plain(workloads_, rows);
    compare_beside(workloads_, rows);
    for (const std::string& table : {plain_table(rows), beside_table(rows)})
      if (!table.empty()) show(table);
    json_["rows"] = bench_json("", ceilings_, rows, best())["rows"];
  }

  void run_growth(Growth& growth) {
    measure_growth(engine_, blocks_, growth, progress_);
    for (const GrowthRow& row : growth.rows) all_right_ = all_right_ && row.row.not_run.empty();
    show(growth_table(growth, ceilings_));
    json_["growth"].push_back(growth_json(growth, ceilings_));
  }

  void run_graph_maxima() {
    progress_.step("graph maxima");
    const GraphMaxima maxima = measure_graph_maxima(engine_, blocks_);
    progress_.clear();
    const bool is_possible = engine_.device().kind == DeviceKind::cuda;
    all_right_ = all_right_ && (maxima.not_run.empty() || !is_possible);
    show(graph_maxima_table(maxima));
    json_["graph_maxima"] = graph_maxima_json(maxima);
  }

  void run_host() {
    progress_.step("host");
    const std::vector<HostCost> costs = measure_host(engine_, blocks_);
    progress_.clear();
    show(host_table(costs));
    json_["host"] = host_json(costs);
  }

  void run_append() {
    progress_.step("append_kv");
    const AppendTable table = measure_append(engine_);
    progress_.clear();
    all_right_ = all_right_ && table.all_ran();
    show(append_table(table));
    json_["append"] = append_json(table);
  }

  void show(const std::string& table) const {
    fmt::print("\n{}", table);
    std::fflush(stdout);
  }

  Wanted wanted_;
  std::optional<BestPeers> peers_;
  Engine engine_;
  RandomBlocks blocks_{engine_};
  std::vector<Workload> workloads_;
  std::vector<Growth> growth_;
  Progress progress_;
  Ceilings ceilings_;
  nlohmann::ordered_json json_;
  bool all_right_ = true;
};

}  // namespace

int bench(const Arguments& arguments) {
  Wanted wanted;
  Options options(
      "bench",
      "Checks named workloads, then times them beside the machine's ceilings. --growth, "
      "--graph-maxima, --host and --append run tables of their own in place of the workloads; "
      "--only or --workloads with them runs both.");
  options.text(wanted.file, "--workloads",
               "JSON list of workloads; the built-in ones where left out");
  options.text(wanted.only, "--only", "run those whose names start with this; several with commas. Of tables: shared, tree, append, lengths, variants, sparse");
  options.flag(wanted.growth, "--growth",
               "decode over batch 1 to 1024 and over 128 to 1M keys, beside a smooth line");
  options.number(wanted.growth_keys, "--growth-keys",
                 "leave out rows of --growth with more keys; 0: 2097152 on a GPU, 8192 on the CPU");
  options.flag(wanted.graph_maxima, "--graph-maxima",
               "8 requests in a graph captured for 256, beside one captured for 8");
  options.flag(wanted.host, "--host", "what plan, run and making an Attention cost the host");
  options.flag(wanted.append, "--append",
               "append_kv of 8192 new tokens and of 64, copied and turned by rope, beside a copy");
  options.flag(wanted.batch_invariant, "--batch-invariant",
               "every row of the workloads and of --growth with AttentionConfig::batch_invariant; "
               "a workload may ask for it by itself");
  options.text(wanted.device, "--device", "auto, cuda or cpu");
  options.text(wanted.json, "--json", "write the figures to this file");
  options.text(wanted.beside, "--beside",
               "JSON of a run over peers: adds the ratio to the best of them");
  if (!options.parse(arguments)) return 0;
  if (wanted.growth_keys != 0) {
    check_at_least(wanted.growth_keys, kFewestKeys, "--growth-keys");
    if (!wanted.growth)
      fail(ErrorKind::invalid_argument,
           "--growth-keys says how far --growth goes; give --growth too.");
  }
  if (wanted.batch_invariant && (wanted.graph_maxima || wanted.host || wanted.append))
    fail(ErrorKind::invalid_argument,
         "--batch-invariant is for the workloads and --growth; run --graph-maxima, --host and "
         "--append without it.");
  return Bench(wanted).run() ? 0 : 1;
}

}  // namespace heddle::tools
