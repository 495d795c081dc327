// heddle plan: how a batch is cut into work. CPU only; the GPU is described by --arch and --sms.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>

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
#include "tools/gpu_timer.h"
#include "tools/json.h"
#include "tools/lengths_only.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

struct Input {
  std::vector<std::int32_t> qo_lens, kv_lens;
  PlanConfig config;
  MaskBounds mask;
};

// What an Attention for any batch would plan with, on a GPU that need not be here. Its tile is the
// one that an engine tries first.
PlanConfig plan_config_of(const Heads& heads, int page_size, bool batch_invariant,
                          const DeviceLimits& limits) {
  const AttentionConfig attention{.num_qo_heads = heads.num_qo_heads,
                                  .num_kv_heads = heads.num_kv_heads,
                                  .head_dim = heads.head_dim,
                                  .head_dim_vo = heads.head_dim_vo,
                                  .page_size = page_size};
  check_config(attention);
  PlanConfig config{.num_kv_heads = heads.num_kv_heads,
                    .group = heads.num_qo_heads / heads.num_kv_heads,
                    .head_dim = heads.head_dim,
                    .head_dim_vo = heads.head_dim_vo,
                    .page_size = page_size,
                    .max_decode_rows = decode_rows(attention),
                    .batch_invariant = batch_invariant};
  for (const Pipeline pipeline : launch_set(attention)) {
    const TileConfig tile = tile_candidates(pipeline, decode_rows(attention), head_dims(attention), limits)[0];
    config.pipeline[static_cast<int>(pipeline)] =
        pipeline_shape(pipeline, tile, limits.num_sms * tile.ctas_per_sm, head_dims(attention));
  }
  return config;
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
  fmt::print("{} requests, {} query rows and {} keys in all\n", input.kv_lens.size(),
             std::accumulate(input.qo_lens.begin(), input.qo_lens.end(), std::int64_t{0}),
             std::accumulate(input.kv_lens.begin(), input.kv_lens.end(), std::int64_t{0}));
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

int run(const Input& input, int page_size, const std::string& svg, int explained,
        const std::string& json) {
  const LengthsOnly lengths(input.qo_lens, input.kv_lens, page_size);
  const Maxima maxima{.max_requests = std::max(1, int(input.kv_lens.size())),
                      .max_qo_rows = std::max(1, lengths.qo_indptr.back()),
                      .max_kv_tokens = std::max<std::int64_t>(1, lengths.kv_tokens)};
  Planner planner(input.config, maxima);
  std::vector<std::byte> bytes(planner.layout().plan_bytes);  // operator new aligns to 16
  const PlanSummary summary = planner.plan(lengths.batch(), input.mask, bytes);
  const double host_us = median_host_us(planner, lengths.batch(), input.mask, bytes);
  print_summary(input, summary, planner.layout(), host_us);
  if (explained >= 0) fmt::print("\n{}\n", explain(input.config, bytes, explained));
  if (!svg.empty()) write_text_file(svg, draw_svg(input.config, bytes));
  write_json(json, {{"items", sum(summary.items)},
                    {"partials", sum(summary.partials)},
                    {"cut_streams", sum(summary.joins)},
                    {"max_over_mean", worst_balance(summary)},
                    {"copy_bytes", summary.copy_bytes},
                    {"workspace_bytes", planner.layout().total_bytes},
                    {"host_us", host_us}});
  return 0;
}

}  // namespace

int plan(const Arguments& arguments) {
  std::string qo = "1x1", kv = "64x4096", heads = "32,8,128", arch = "sm_90a", variant = "softmax",
              svg, json;
  std::vector<std::string> params;
  int page = 16, sms = 132, explained = -1;
  bool batch_invariant = false;
  Options options("plan", "Shows how a batch is cut into work items for a GPU's CTAs.");
  options.text(qo, "--qo", "query lengths; one length serves all requests");
  options.text(
      kv, "--kv",
      "KV lengths: 64x4096, 1x131072+255x1024, zipf:256:65536, uniform:64:256:16384, [1,2,3]");
  options.text(heads, "--heads", kHeadsHelp);
  options.number(page, "--page", "keys of a page; 0: ragged");
  options.number(sms, "--sms", "multiprocessors of the GPU");
  options.text(arch, "--arch", "its architecture");
  options.text(variant, "--variant", "a registered name, or a spec file: its declared mask counts");
  options.texts(params, "--param", "name=value");
  options.flag(batch_invariant, "--batch-invariant",
               "cut each request by its own lengths alone, so that its bits never depend on the batch");
  options.text(svg, "--svg", "draw the work list into this file");
  options.number(explained, "--explain", "tell how this request was cut and why");
  options.text(json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;
  check_at_least(sms, 1, "--sms");

  Engine engine({.device = DeviceKind::cpu});
  const Variant& chosen = engine.variants().at(resolve_variant(engine, variant));
  Input input;
  input.kv_lens = parse_lengths(kv);
  input.qo_lens = parse_qo_lengths(qo, input.kv_lens.size());
  input.mask = chosen.bounds(chosen.resolve(parse_params(params)));
  DeviceLimits limits = limits_of(arch);
  limits.num_sms = sms;
  input.config = plan_config_of(parse_heads(heads), page, batch_invariant, limits);
  return run(input, page, svg, explained, json);
}

}  // namespace heddle::tools
