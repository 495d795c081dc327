#include "tools/verify_case.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/driver.h"
#include "tools/key_ranges.h"
#include "tools/variant_tensors.h"

namespace heddle::tools {
namespace {

// Rows and pages of a batch, with a few pages more than are used.
struct Sizes {
  int rows = 0, pages = 3;
  std::int64_t keys = 0;

  explicit Sizes(const VerifyCase& given) {
    const int page_size = given.config.page_size;
    for (const std::int32_t n : given.qo_lens) rows += n;
    for (const std::int32_t n : given.kv_lens) {
      keys += n;
      pages += page_size ? (n + page_size - 1) / page_size : n;
    }
  }
};

// A batch on the device: one layer of K/V, the query side, page ids.
struct CaseData {
  Sizes sizes;
  KvCache cache;
  QuerySide query;
  DeviceMemory indices;

  CaseData(const Engine& engine, const VerifyCase& given)
      : sizes(given),
        cache(engine,
              {.num_kv_heads = given.config.num_kv_heads,
               .head_dim = given.config.head_dim,
               .head_dim_vo = given.config.vo_dim(),
               .page_size = given.config.page_size,
               .dtype = given.config.kv_dtype,
               .layout = given.layout},
              1, sizes.pages, given.seed),
        query(engine, sizes.rows + 2, given.config.num_qo_heads, given.config.head_dim, given.config.q_dtype,
              given.seed + 1, given.config.vo_dim()) {}

  StepBatch fill(const Engine& engine, const VerifyCase& given) {
    std::vector<StepRequest> step;
    for (int r = 0; r < int(given.kv_lens.size()); ++r) {
      cache.append(r, given.kv_lens[r]);
      step.push_back({r, given.qo_lens[r]});
    }
    cache.upload();
    query.refill(sizes.rows);
    StepBatch batch(cache, step);
    indices = DeviceMemory(engine, std::max<std::size_t>(1, batch.kv_indices.size()) * 4);
    indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
    return batch;
  }
};

}  // namespace

StepCheck verify_case(const Engine& engine, Attention& attention, const VerifyCase& given) {
  const AttentionConfig& config = given.config;
  CaseData data(engine, given);
  StepBatch batch = data.fill(engine, given);
  batch.ranges = random_key_ranges(attention.variant(), given.seed + 3, given.qo_lens, given.kv_lens);
  const VariantTensors own(engine, attention.variant(), shape_words(config, given.qo_lens, given.kv_lens),
                           all_params(config, given.params), given.seed + 2);
  Workspace workspace = attention.workspace({.max_requests = std::max(1, int(given.kv_lens.size())),
                                             .max_qo_rows = std::max(1, data.sizes.rows),
                                             .max_kv_tokens = std::max<std::int64_t>(1, data.sizes.keys)});
  attention.plan(batch.batch(), workspace, nullptr, given.params);
  Tensors tensors{.q = data.query.q(),
                  .k = data.cache.k(0),
                  .v = data.cache.v(0),
                  .o = data.query.o(),
                  .layout = data.cache.shape().layout,
                  .variant = own.on_device()};
  if (attention.variant().use_softmax) tensors.lse = data.query.lse();  // else there is none
  if (config.page_size) tensors.kv_indices = static_cast<std::int32_t*>(data.indices.data());
  attention.run(workspace, tensors, given.params);
  if (engine.device().kind == DeviceKind::cuda) synchronize(nullptr);
  return check_step(engine, attention, given.params, data.cache, 0, batch, data.query, own.on_host());
}

std::string command_of(const VerifyCase& given, const std::string& variant) {
  const AttentionConfig& c = given.config;
  std::string text = fmt::format("heddle verify --variant {} --heads {},{},{}", variant, c.num_qo_heads, c.num_kv_heads,
                                 c.head_dim);
  if (c.vo_dim() != c.head_dim) text += fmt::format(",{}", c.vo_dim());
  text += fmt::format(" --page {} --dtype {} --layout {} --qo '[{}]' --kv '[{}]'", c.page_size, name_of(c.q_dtype),
                      given.layout == KvLayout::NHD ? "NHD" : "HND", fmt::join(given.qo_lens, ","),
                      fmt::join(given.kv_lens, ","));
  for (const auto& [name, value] : all_params(c, given.params)) text += fmt::format(" --param {}={}", name, value);
  if (c.max_qo_len != 0) text += fmt::format(" --max-qo-len {}", c.max_qo_len);
  if (c.max_requests != 0) text += fmt::format(" --max-requests {}", c.max_requests);
  if (c.batch_invariant) text += " --batch-invariant";
  if (c.portable) text += " --portable";
  return text + fmt::format(" --seed {}", given.seed);
}

}  // namespace heddle::tools
