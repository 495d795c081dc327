// heddle verify: one configuration against the double-precision reference. Everything that a
// kernel must not read or write holds NaN.
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
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

struct Setting {
  std::string variant = "softmax", heads = "8,2,64", qo = "4x1", kv = "[1,17,100,333]",
              dtype = "bf16", layout = "NHD";
  std::vector<std::string> params;
  int page = 16, max_qo_len = 0;
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
                         .q_dtype = parse_dtype(setting.dtype),
                         .kv_dtype = parse_dtype(setting.dtype),
                         .page_size = setting.page,
                         .max_qo_len = setting.max_qo_len};
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

StepCheck run(Engine& engine, const AttentionConfig& config, const Setting& setting) {
  const std::vector<std::int32_t> kv_lens = parse_lengths(setting.kv);
  std::vector<std::int32_t> qo_lens = parse_lengths(setting.qo);
  if (qo_lens.size() == 1) qo_lens.assign(kv_lens.size(), qo_lens[0]);
  if (qo_lens.size() != kv_lens.size()) {
    fail(ErrorKind::invalid_argument,
         "--qo has {} lengths where --kv has {}; give one of each a request, or one for all.",
         qo_lens.size(), kv_lens.size());
  }
  const Sizes sizes = sizes_of(qo_lens, kv_lens, config.page_size);
  KvCache cache(engine,
                {.num_kv_heads = config.num_kv_heads,
                 .head_dim = config.head_dim,
                 .page_size = config.page_size,
                 .dtype = config.kv_dtype,
                 .layout = parse_layout(setting.layout)},
                1, sizes.pages, setting.seed);
  std::vector<StepRequest> step;
  for (int r = 0; r < int(kv_lens.size()); ++r) {
    cache.append(r, kv_lens[r]);
    step.push_back({r, qo_lens[r]});
  }
  cache.upload();
  const StepBatch batch(cache, step);
  DeviceMemory indices(engine, std::max<std::size_t>(1, batch.kv_indices.size()) * 4);
  indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
  QuerySide query(engine, sizes.rows + 2, config.num_qo_heads, config.head_dim, config.q_dtype,
                  setting.seed + 1);
  query.refill(sizes.rows);

  Progress progress(1);
  progress.step(fmt::format("compiling {}, or finding it in the cache", config.variant));
  Attention attention = engine.attention(config);
  progress.clear();
  const ParamValues params = run_time_params(config, setting);
  Workspace workspace =
      attention.workspace({.max_requests = std::max(1, int(kv_lens.size())),
                           .max_qo_rows = std::max(1, sizes.rows),
                           .max_kv_tokens = std::max<std::int64_t>(1, sizes.keys)});
  attention.plan(batch.batch(), workspace, nullptr, params);
  const Tensor lse =
      attention.variant().use_softmax ? query.lse() : Tensor{};  // without softmax there is none
  attention.run(
      workspace,
      {.q = query.q(),
       .k = cache.k(0),
       .v = cache.v(0),
       .o = query.o(),
       .lse = lse,
       .layout = cache.shape().layout,
       .kv_indices = config.page_size ? static_cast<const std::int32_t*>(indices.data()) : nullptr},
      params);
  if (engine.device().kind == DeviceKind::cuda) synchronize(nullptr);
  return check_step(engine, attention, params, cache, 0, batch, query);
}

}  // namespace

int verify(const Arguments& arguments) {
  Setting setting;
  Options options("verify",
                  "Runs one configuration and compares it with the double-precision reference.");
  options.text(setting.variant, "--variant", "a registered name, or a spec file");
  options.text(setting.heads, "--heads", "query heads, KV heads, head_dim");
  options.number(setting.page, "--page", "keys of a page; 0: ragged");
  options.text(setting.qo, "--qo", "query lengths; one length serves all requests");
  options.text(setting.kv, "--kv",
               "KV lengths: 64x4096, 1x131072+255x1024, zipf:256:65536, [1,2,3]");
  options.text(setting.dtype, "--dtype", "bf16 or f16");
  options.text(setting.layout, "--layout", "NHD or HND");
  options.texts(setting.params, "--param", "name=value");
  options.number(setting.max_qo_len, "--max-qo-len", "longest query that is declared; 0: any");
  options.number(setting.seed, "--seed", "of the values and the order of pages");
  options.text(setting.device, "--device", "auto, cuda or cpu");
  options.text(setting.json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;

  Engine engine({.device = parse_device(setting.device)});
  const AttentionConfig config = config_of(engine, setting);
  const StepCheck check = run(engine, config, setting);
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  fmt::print("{} on {}: {}\nlargest error {:.3e}, tolerance {:.3e}; of lse {:.1e}\n",
             config.variant, engine.device().name, check.ok() ? "right" : check.problem(),
             check.max_error, check.tolerance, check.max_lse_error);
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
