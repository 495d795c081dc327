// heddle demo: the main job on real input. A variant is registered from its JSON file, a batch of
// requests grows and shrinks over several decode steps and layers, one graph that was captured
// once runs them all, and every step of every layer is held against the reference.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/check.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/texts.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

constexpr int kLayers = 4, kNumPages = 160, kMaxRows = 192;
constexpr Heads kHeads{8, 2, 64};
constexpr KvShape kShape{
    .num_kv_heads = kHeads.num_kv_heads, .head_dim = kHeads.head_dim, .page_size = 16};

// What happens before a step: requests that end, requests that come with a prompt. All others
// decode one token.
struct Event {
  const char* what;
  std::vector<int> ends;
  std::vector<StepRequest> begins;
};

const std::vector<Event>& story() {
  static const std::vector<Event> events = {
      {"two prompts arrive", {}, {{0, 70}, {1, 5}}},
      {"both decode", {}, {}},
      {"three more arrive", {}, {{2, 33}, {3, 1}, {4, 16}}},
      {"all decode", {}, {}},
      {"one ends", {1}, {}},
      {"a long prompt arrives", {}, {{5, 150}}},
      {"three end", {0, 2, 3}, {}},
      {"the rest end: no request", {4, 5}, {}},
      {"four arrive", {}, {{6, 17}, {7, 1}, {8, 64}, {9, 15}}},
      {"all decode", {}, {}},
      {"two end, the rest decode", {6, 8}, {}},
  };
  return events;
}

std::string write_variant_file() {
  // The file's own name is part of every compiler message, and so of the cache's key: it must not
  // change from one run to the next.
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("heddle_demo_{}", getpid());
  std::filesystem::create_directory(folder);
  const auto path = folder / "capped_alibi.json";
  write_text_file(path.string(), embedded_text("tools/demo_variant.json"));
  return path.string();
}

// The model: caches, query tensors, an Attention and, on the GPU, its graph.
class Demo {
 public:
  explicit Demo(Engine& engine)
      : engine_(engine),
        on_gpu_(engine.device().kind == DeviceKind::cuda),
        cache_(engine, kShape, kLayers, kNumPages, 1),
        indices_(engine, kNumPages * sizeof(std::int32_t)) {
    const std::string file = write_variant_file();
    engine.register_variant_file(file);
    const auto begin = std::chrono::steady_clock::now();
    Progress progress(1);
    progress.step("compiling capped_alibi, or finding it in the cache");
    attention_ = engine.attention({.variant = "capped_alibi",
                                   .num_qo_heads = kHeads.num_qo_heads,
                                   .num_kv_heads = kHeads.num_kv_heads,
                                   .head_dim = kHeads.head_dim,
                                   .page_size = kShape.page_size});
    progress.clear();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    workspace_ =
        attention_.workspace({.max_requests = 8,
                              .max_qo_rows = kMaxRows,
                              .max_kv_tokens = std::int64_t{kNumPages} * kShape.page_size});
    for (int layer = 0; layer < kLayers; ++layer) {
      query_.emplace_back(engine, kMaxRows, kHeads.num_qo_heads, kHeads.head_dim, kShape.dtype,
                          100 + layer);
    }
    if (on_gpu_) stream_ = StreamHandle::create();
    print_set_up(file, seconds.count());
    std::filesystem::remove_all(std::filesystem::path(file).parent_path());
  }

  // Plans and runs the batch in every layer. The graph is captured at the first step.
  void run(const StepBatch& batch) {
    cache_.upload();
    indices_.write(0, std::as_bytes(std::span(batch.kv_indices)));
    for (QuerySide& query : query_) query.refill(batch.num_qo_rows());
    summary_ = attention_.plan(batch.batch(), workspace_, stream_.get(), params());
    if (!on_gpu_) return run_layers();
    if (!graph_) {
      Graph::begin_capture(stream_.get());
      run_layers();
      graph_ = Graph::end_capture(stream_.get());
    }
    graph_.launch(stream_.get());
    stream_.synchronize();
  }

  StepCheck check(const StepBatch& batch) const {
    StepCheck worst;
    for (int layer = 0; layer < kLayers; ++layer) {
      worst = worse(worst,
                    check_step(engine_, attention_, params(), cache_, layer, batch, query_[layer]));
    }
    return worst;
  }

  KvCache& cache() { return cache_; }
  const PlanSummary& summary() const { return summary_; }
  std::size_t num_graph_nodes() const { return graph_.num_nodes(); }

 private:
  static ParamValues params() { return {{"cap", 20.0}, {"window", 50}}; }

  void print_set_up(const std::string& file, double seconds) const {
    const DeviceInfo& device = engine_.device();
    fmt::print("device     {}{}\n", device.name,
               on_gpu_ ? fmt::format(" ({})", device.arch) : fmt::format(": {}", device.why_cpu));
    fmt::print("variant    {} from {}\n", attention_.variant().name, file);
    fmt::print(
        "attention  {} query heads, {} KV heads, head_dim {}, page_size {}, bf16; made in {:.3f} "
        "s\n",
        kHeads.num_qo_heads, kHeads.num_kv_heads, kHeads.head_dim, kShape.page_size, seconds);
    for (const KernelInfo& kernel : attention_.kernels()) {
      fmt::print("kernel     {} for {}: {} in {:.1f} ms{}\n", kernel.kernel, kernel.arch,
                 kernel.origin, kernel.load_ms,
                 kernel.registers
                     ? fmt::format(", {} registers, {} bytes shared, {} bytes spilled",
                                   kernel.registers, kernel.shared_bytes, kernel.spill_bytes)
                     : "");
    }
    fmt::print("workspace  {} bytes at one address\n", workspace_.bytes());
    fmt::print("replay     {}\n\n",
               on_gpu_ ? "one CUDA graph, captured at the first step, launched in every step"
                       : "no graph on the CPU device: every step calls run() in each layer");
  }

  void run_layers() {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Tensors tensors{.q = query_[layer].q(),
                            .k = cache_.k(layer),
                            .v = cache_.v(layer),
                            .o = query_[layer].o(),
                            .lse = query_[layer].lse(),
                            .layout = kShape.layout,
                            .kv_indices = static_cast<const std::int32_t*>(indices_.data())};
      attention_.run(workspace_, tensors, params(), stream_.get());
    }
  }

  Engine& engine_;
  bool on_gpu_;
  KvCache cache_;
  DeviceMemory indices_;
  Attention attention_;
  Workspace workspace_;
  std::vector<QuerySide> query_;  // one a layer
  StreamHandle stream_;
  Graph graph_;
  PlanSummary summary_;
};

// Applies an event; afterwards the cache holds the keys of this step's rows too.
std::vector<StepRequest> next_requests(KvCache& cache, std::vector<int>& active,
                                       const Event& event) {
  for (const int request : event.ends) {
    cache.release(request);
    std::erase(active, request);
  }
  std::vector<StepRequest> step;
  for (const int request : active) step.push_back({request, 1});
  for (const StepRequest& prompt : event.begins) {
    step.push_back(prompt);
    active.push_back(prompt.request);
  }
  for (const StepRequest& r : step) cache.append(r.request, r.qo_len);
  return step;
}

}  // namespace

int demo(const Arguments& arguments) {
  std::string device = "auto", json;
  Options options(
      "demo",
      "Registers a variant, plans and runs a batch that grows and shrinks, checks every step.");
  options.text(device, "--device", "auto, cuda or cpu");
  options.text(json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;

  Engine engine({.device = parse_device(device)});
  Demo demo(engine);
  fmt::print("{:>4}  {:<26}{:>9}{:>6}{:>7}{:>7}{:>11}{:>11}  {}\n", "step", "what happens",
             "requests", "rows", "keys", "items", "max error", "tolerance", "check");
  std::vector<int> active;
  bool all_right = true;
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < story().size(); ++i) {
    const StepBatch batch(demo.cache(), next_requests(demo.cache(), active, story()[i]));
    demo.run(batch);
    const StepCheck check = demo.check(batch);
    all_right = all_right && check.ok();
    const int items = demo.summary().items[0] + demo.summary().items[1];
    fmt::print("{:>4}  {:<26}{:>9}{:>6}{:>7}{:>7}{:>11.2e}{:>11.2e}  {}\n", i + 1, story()[i].what,
               batch.requests.size(), batch.num_qo_rows(), batch.num_kv_tokens(demo.cache()), items,
               check.max_error, check.tolerance, check.ok() ? "right" : check.problem());
    std::fflush(stdout);
    figures.push_back({{"requests", batch.requests.size()},
                       {"max_error", check.max_error},
                       {"tolerance", check.tolerance},
                       {"ok", check.ok()}});
  }
  fmt::print("\n{} steps x {} layers, {}\n", story().size(), kLayers,
             all_right ? "every output within the tolerance of the double-precision reference"
                       : "with wrong results");
  if (engine.device().kind == DeviceKind::cuda)
    fmt::print("the one graph has {} nodes\n", demo.num_graph_nodes());
  write_json(json, {{"ok", all_right}, {"device", engine.device().name}, {"steps", figures}});
  return all_right ? 0 : 1;
}

}  // namespace heddle::tools
