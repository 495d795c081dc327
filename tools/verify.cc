// heddle verify: one configuration against the double-precision reference. Everything that a
// kernel must not read or write holds NaN.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "planner/lengths.h"
#include "runtime/driver.h"
#include "tools/check.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/variant_tensors.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

struct Setting {
  std::string variant = "softmax", heads = "8,2,64", qo = "4x1", kv = "[1,17,100,333]",
              dtype = "bf16", layout = "NHD";
  std::vector<std::string> params;
  int page = 16, max_qo_len = 0;
  bool batch_invariant = false;
  std::uint64_t seed = 0;
  std::string device = "auto", json;
};

AttentionConfig config_of(Engine& engine, const Setting& setting) {
  const Heads heads = parse_heads(setting.heads);
  check_at_least(setting.page, 0, "--page");
  AttentionConfig config{.variant = resolve_variant(engine, setting.variant),
                         .num_qo_heads = heads.num_qo_heads,
                         .num_kv_heads = heads.num_kv_heads,
                         .head_dim = heads.head_dim,
                         .head_dim_vo = heads.head_dim_vo,
                         .q_dtype = parse_dtype(setting.dtype),
                         .kv_dtype = parse_dtype(setting.dtype),
                         .page_size = setting.page,
                         .max_qo_len = setting.max_qo_len,
                         .batch_invariant = setting.batch_invariant};
  // Constants are fixed with the Attention, the others are given to plan() and run().
  const ParamValues given = parse_params(setting.params);
  for (const Param& param : engine.variants().at(config.variant).params) {
    if (param.constant && given.contains(param.name))
      config.constants[param.name] = given.at(param.name);
  }
  return config;
}

ParamValues run_time_params(const AttentionConfig& config, const Setting& setting) {
  ParamValues params = parse_params(setting.params);
  for (const auto& [name, value] : config.constants) params.erase(name);
  return params;
}

// Rows and pages of a batch, with a few pages more than are used.
struct Sizes {
  int rows = 0, pages = 0;
  std::int64_t keys = 0;
};

Sizes sizes_of(const std::vector<std::int32_t>& qo, const std::vector<std::int32_t>& kv,
               int page_size) {
  Sizes sizes{.pages = 3};
  for (const std::int32_t n : qo) sizes.rows += n;
  for (const std::int32_t n : kv) {
    sizes.keys += n;
    sizes.pages += page_size ? (n + page_size - 1) / page_size : n;
  }
  return sizes;
}

// A batch on the device: one layer of K/V, the query side, page ids.
struct Case {
  std::vector<std::int32_t> kv_lens, qo_lens;
  Sizes sizes;
  KvCache cache;
  QuerySide query;
  DeviceMemory indices;

  Case(const Engine& engine, const AttentionConfig& config, const Setting& setting)
      : kv_lens(parse_lengths(setting.kv)),
        qo_lens(parse_qo_lengths(setting.qo, kv_lens.size())),
        sizes(sizes_of(qo_lens, kv_lens, config.page_size)),
        cache(engine,
              {.num_kv_heads = config.num_kv_heads,
               .head_dim = config.head_dim,
               .head_dim_vo = config.vo_dim(),
               .page_size = config.page_size,
               .dtype = config.kv_dtype,
               .layout = parse_layout(setting.layout)},
              1, sizes.pages, setting.seed),
        query(engine, sizes.rows + 2, config.num_qo_heads, config.head_dim, config.q_dtype,
              setting.seed + 1, config.vo_dim()) {}

  StepBatch fill(const Engine& engine) {
    std::vector<StepRequest> step;
    for (int r = 0; r < int(kv_lens.size()); ++r) {
      cache.append(r, kv_lens[r]);
      step.push_back({r, qo_lens[r]});
    }
    cache.upload();
    query.refill(sizes.rows);
    StepBatch batch(cache, step);
    indices = DeviceMemory(engine, std::max<std::size_t>(1, batch.kv_indices.size()) * 4);
    indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
    return batch;
  }
};

Attention make_attention(Engine& engine, const AttentionConfig& config) {
  Progress progress(1);
  progress.step(fmt::format("compiling {}, or finding it in the cache", config.variant));
  return engine.attention(config);
}

StepCheck run(Engine& engine, const AttentionConfig& config, const Setting& setting) {
  Case data(engine, config, setting);
  const StepBatch batch = data.fill(engine);
  Attention attention = make_attention(engine, config);
  const ParamValues params = run_time_params(config, setting);
  const VariantTensors own(engine, attention.variant(),
                           shape_words(config, data.qo_lens, data.kv_lens),
                           parse_params(setting.params), setting.seed + 2);
  Workspace workspace =
      attention.workspace({.max_requests = std::max(1, int(data.kv_lens.size())),
                           .max_qo_rows = std::max(1, data.sizes.rows),
                           .max_kv_tokens = std::max<std::int64_t>(1, data.sizes.keys)});
  attention.plan(batch.batch(), workspace, nullptr, params);
  Tensors tensors{.q = data.query.q(),
                  .k = data.cache.k(0),
                  .v = data.cache.v(0),
                  .o = data.query.o(),
                  .layout = data.cache.shape().layout,
                  .variant = own.on_device()};
  if (attention.variant().use_softmax) tensors.lse = data.query.lse();  // else there is none
  if (config.page_size) tensors.kv_indices = static_cast<std::int32_t*>(data.indices.data());
  attention.run(workspace, tensors, params);
  if (engine.device().kind == DeviceKind::cuda) synchronize(nullptr);
  return check_step(engine, attention, params, data.cache, 0, batch, data.query, own.on_host());
}

}  // namespace

int verify(const Arguments& arguments) {
  Setting setting;
  Options options("verify",
                  "Runs one configuration and compares it with the double-precision reference.");
  options.text(setting.variant, "--variant", "a registered name, or a spec file");
  options.text(setting.heads, "--heads", kHeadsHelp);
  options.number(setting.page, "--page", "keys of a page; 0: ragged");
  options.text(setting.qo, "--qo", "query lengths; one length serves all requests");
  options.text(setting.kv, "--kv",
               "KV lengths: 64x4096, 1x131072+255x1024, zipf:256:65536, [1,2,3]");
  options.text(setting.dtype, "--dtype", "bf16 or f16");
  options.text(setting.layout, "--layout", "NHD or HND");
  options.texts(setting.params, "--param", "name=value");
  options.number(setting.max_qo_len, "--max-qo-len", "longest query that is declared; 0: any");
  options.flag(setting.batch_invariant, "--batch-invariant",
               "cut each request by its own lengths alone, so that its bits never depend on the batch");
  options.number(setting.seed, "--seed", "of the values and the order of pages");
  options.text(setting.device, "--device", "auto, cuda or cpu");
  options.text(setting.json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;

  Engine engine({.device = parse_device(setting.device)});
  const AttentionConfig config = config_of(engine, setting);
  const StepCheck check = run(engine, config, setting);
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  const bool has_lse = engine.variants().at(config.variant).use_softmax;
  fmt::print(
      "{} on {}: {}\nlargest error {:.3e}, tolerance {:.3e}; {}\n", config.variant,
      engine.device().name, check.ok() ? "right" : check.problem(), check.max_error,
      check.tolerance,
      has_lse ? fmt::format("of lse {:.1e}", check.max_lse_error) : "no lse without softmax");
  write_json(setting.json, {{"ok", check.ok()},
                            {"max_error", check.max_error},
                            {"tolerance", check.tolerance},
                            {"max_lse_error", check.max_lse_error},
                            {"device", on_gpu ? "cuda" : "cpu"},
                            {"device_name", engine.device().name},
                            {"variant", config.variant},
                            {"seed", setting.seed}});
  return check.ok() ? 0 : 1;
}

}  // namespace heddle::tools
