// heddle plan: how a batch is cut into work. CPU only; the GPU is described by --arch and --sms.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/kernel_source.h"
#include "engine/launch_set.h"
#include "planner/draw.h"
#include "planner/explain.h"
#include "planner/lengths.h"
#include "planner/plan.h"
#include "planner/cost_table.h"
#include "tools/bench_pages.h"
#include "tools/gpu_timer.h"
#include "tools/json.h"
#include "tools/lengths_only.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

// Of all batches that the Attention is for; 0: any.
struct Declared {
  int max_qo_len = 0, max_requests = 0;
};

struct Input {
  Workload workload;  // lengths, pages and what is shared
  Declared declared;
  PlanConfig config;
  MaskBounds mask;
};

// What an Attention would plan with, on a GPU that need not be here. Its tile is the one that an engine tries first.
PlanConfig plan_config_of(const Workload& w, const Declared& declared, const Variant& variant, const DeviceLimits& limits) {
  const Heads& heads = w.heads;
  const AttentionConfig attention{.num_qo_heads = heads.num_qo_heads,
                                  .num_kv_heads = heads.num_kv_heads,
                                  .head_dim = heads.head_dim,
                                  .head_dim_vo = heads.head_dim_vo,
                                  .page_size = w.page_size,
                                  .max_qo_len = declared.max_qo_len,
                                  .max_requests = declared.max_requests,
                                  .batch_invariant = w.batch_invariant,
                                  .share_prefixes = w.share_prefixes};
  check_config(attention);
  check_sharing(variant, attention);
  PlanConfig config{.num_kv_heads = heads.num_kv_heads,
                    .group = heads.num_qo_heads / heads.num_kv_heads,
                    .head_dim = heads.head_dim,
                    .head_dim_vo = heads.head_dim_vo,
                    .page_size = w.page_size,
                    .max_decode_rows = decode_rows(attention),
                    .batch_invariant = w.batch_invariant,
                    .share_prefixes = w.share_prefixes,
                    .sharing_cost = kSharingCost};
  for (const Pipeline pipeline : launch_set(attention)) {
    const TileConfig tile = tile_candidates(pipeline, attention, limits, has_tile_hooks(variant))[0];
    config.pipeline[static_cast<int>(pipeline)] =
        pipeline_shape(pipeline, tile, limits.num_sms * tile.ctas_per_sm, head_dims(attention));
  }
  return config;
}

// "64x16384,8x4096": requests and keys of each level.
std::vector<SharedLevel> parse_shared(const std::string& text) {
  std::vector<SharedLevel> levels;
  std::istringstream list(text);
  for (std::string level; std::getline(list, level, ',');) {
    const std::vector<std::int32_t> lengths = parse_lengths(level);
    levels.push_back({int(lengths.size()), lengths.empty() ? 0 : lengths[0]});
  }
  return levels;
}

double median_host_us(Planner& planner, const Batch& batch, const MaskBounds& mask,
                      std::span<std::byte> bytes) {
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    planner.plan(batch, mask, bytes);
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  return median(times);
}

int sum(const std::array<int, kNumPipelines>& counts) { return counts[0] + counts[1]; }

// The worse of the pipelines that have work; 1 where none has.
double worst_balance(const PlanSummary& summary) {
  double worst = 1;
  for (int p = 0; p < kNumPipelines; ++p) {
    if (summary.items[p] > 0) worst = std::max(worst, summary.max_over_mean[p]);
  }
  return worst;
}

void print_summary(const Input& input, const PlanSummary& summary, const WorkspaceLayout& layout,
                   double host_us) {
  const Workload& w = input.workload;
  fmt::print("{} requests, {} query rows and {} keys in all\n", w.kv_lens.size(), w.num_qo_rows(), w.num_kv_tokens());
  if (w.share_prefixes)
    fmt::print("shared prefixes {}, levels {}; {} keys need not be read again\n", summary.shared_prefixes,
               summary.prefix_levels, summary.shared_keys);
  for (const Pipeline pipeline : {Pipeline::decode, Pipeline::append}) {
    const int p = static_cast<int>(pipeline);
    if (summary.items[p] == 0) continue;
    fmt::print(
        "{:<7} {:>7} items on {} CTAs, {} of them pieces of {} cut streams; busiest CTA over "
        "mean {:.3f}\n",
        name_of(pipeline), summary.items[p], input.config.of(pipeline).num_ctas,
        summary.partials[p], summary.joins[p], summary.max_over_mean[p]);
  }
  fmt::print("copied {} bytes; workspace {:.1f} MB; host time {:.1f} us\n", summary.copy_bytes,
             double(layout.total_bytes) / 1e6, host_us);
}

int run(const Input& input, const std::string& svg, int explained, const std::string& json) {
  const Workload& w = input.workload;
  const LengthsOnly lengths(w.qo_lens, w.kv_lens, w.page_size);
  const PageTable pages = page_table(w, lengths);
  Batch batch = lengths.batch();
  if (w.share_prefixes) batch.kv_indices = pages.ids;
  const Maxima maxima{.max_requests = std::max(1, int(w.kv_lens.size())),
                      .max_qo_rows = std::max(1, lengths.qo_indptr.back()),
                      .max_kv_tokens = std::max<std::int64_t>(1, lengths.kv_tokens),
                      .max_qo_len = input.declared.max_qo_len};
  Planner planner(input.config, maxima);
  std::vector<std::byte> bytes(planner.layout().plan_bytes);  // operator new aligns to 16
  const PlanSummary summary = planner.plan(batch, input.mask, bytes);
  const double host_us = median_host_us(planner, batch, input.mask, bytes);
  print_summary(input, summary, planner.layout(), host_us);
  if (explained >= 0) fmt::print("\n{}\n", explain(input.config, bytes, explained));
  if (!svg.empty()) write_text_file(svg, draw_svg(input.config, bytes));
  write_json(json, {{"items", sum(summary.items)},
                    {"partials", sum(summary.partials)},
                    {"cut_streams", sum(summary.joins)},
                    {"max_over_mean", worst_balance(summary)},
                    {"shared_prefixes", summary.shared_prefixes},
                    {"prefix_levels", summary.prefix_levels},
                    {"shared_keys", summary.shared_keys},
                    {"copy_bytes", summary.copy_bytes},
                    {"workspace_bytes", planner.layout().total_bytes},
                    {"host_us", host_us}});
  return 0;
}

}  // namespace

int plan(const Arguments& arguments) {
  std::string qo = "1x1", kv = "64x4096", heads = "32,8,128", arch = "sm_90a", variant = "softmax",
              shared, svg, json;
  std::vector<std::string> params;
  int page = 16, sms = 132, explained = -1;
  bool batch_invariant = false;
  Input input;
  Options options("plan", "Shows how a batch is cut into work items for a GPU's CTAs.");
  options.text(qo, "--qo", "query lengths; one length serves all requests");
  options.text(
      kv, "--kv",
      "KV lengths: 64x4096, 1x131072+255x1024, zipf:256:65536, uniform:64:256:16384, [1,2,3]");
  options.text(heads, "--heads", kHeadsHelp);
  options.number(page, "--page", "keys of a page; 0: ragged");
  options.number(sms, "--sms", "multiprocessors of the GPU");
  options.text(arch, "--arch", "its architecture");
  options.number(input.declared.max_qo_len, "--max-qo-len", "most query rows of a request that are declared; 0: any");
  options.number(input.declared.max_requests, "--max-requests", "most requests of a batch that are declared; 0: any");
  options.text(variant, "--variant", "a registered name, or a spec file: its declared mask counts");
  options.texts(params, "--param", "name=value");
  options.flag(batch_invariant, "--batch-invariant",
               "cut each request by its own lengths alone, so that its bits never depend on the batch");
  options.text(shared, "--shared",
               "keys that requests share and are read once for: 64x16384,8x4096 are 16384 of 64 requests and, of "
               "each 8 among them, the next 4096");
  options.text(svg, "--svg", "draw the work list into this file");
  options.number(explained, "--explain", "tell how this request was cut and why");
  options.text(json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;
  check_at_least(sms, 1, "--sms");

  Engine engine({.device = DeviceKind::cpu});
  const Variant& chosen = engine.variants().at(resolve_variant(engine, variant));
  if (chosen.mask.rows_given)
    fail(ErrorKind::invalid_argument,
         "The mask of {} has each row's range of keys given with the batch (\"rows\": \"given\"); heddle plan takes lengths "
         "alone, so choose a variant without.",
         chosen.name);
  Workload& w = input.workload;
  w.heads = parse_heads(heads);
  w.page_size = page;
  w.kv_lens = parse_lengths(kv);
  w.qo_lens = parse_qo_lengths(qo, w.kv_lens.size());
  w.batch_invariant = batch_invariant;
  w.shared = parse_shared(shared);
  w.share_prefixes = !w.shared.empty();
  check_shared(w.shared, page, w.kv_lens, "The batch");
  if (input.declared.max_requests > 0 && int(w.kv_lens.size()) > input.declared.max_requests)
    fail(ErrorKind::invalid_argument, "The batch has {} requests; --max-requests declares {} at most.", w.kv_lens.size(),
         input.declared.max_requests);
  input.mask = chosen.bounds(chosen.resolve(parse_params(params)));
  DeviceLimits limits = limits_of(arch);
  limits.num_sms = sms;
  input.config = plan_config_of(w, input.declared, chosen, limits);
  return run(input, svg, explained, json);
}

}  // namespace heddle::tools
