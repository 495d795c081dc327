#include "tools/random_case.h"

#include <algorithm>
#include <iterator>

namespace heddle::tools {
namespace {

constexpr int kMostRequests = 5;  // of a batch

}  // namespace

HeadDims random_head_dims(Random& random) {
  static constexpr HeadDims kApart[] = {{192, 128}, {128, 64}, {64, 128}, {72, 56}, {64, 256}};
  const int head_dim = pick(random, {64, 64, 96, 128, 128, 192, 256, 56, 72, 88, 200});
  return random.below(4) ? HeadDims{head_dim, 0} : kApart[random.below(int(std::size(kApart)))];
}

AttentionConfig random_config(Random& random, const Engine& engine) {
  const std::vector<std::string> names = engine.variants().names();
  return random_config(random, engine.variants().at(names[std::size_t(random.below(int(names.size())))]));
}

AttentionConfig random_config(Random& random, const Variant& variant) {
  const int group = pick(random, {1, 2, 3, 4, 5, 7, 8, 12, 16, 20});
  const int kv_heads = pick(random, {1, 2, 3});
  const DType dtype = random.below(2) ? DType::bf16 : DType::f16;
  const HeadDims dims = random_head_dims(random);
  return {.variant = variant.name, .num_qo_heads = group * kv_heads, .num_kv_heads = kv_heads,
          .head_dim = dims.qk, .head_dim_vo = dims.vo, .q_dtype = dtype, .kv_dtype = dtype,
          .page_size = pick(random, {0, 1, 5, 16, 64}),
          // Any; decode alone, or the append kernel for short rows; the most that it takes.
          .max_qo_len = pick(random, {0, 0, 0, 1, std::max(1, 64 / group)}),
          .max_requests = pick(random, {0, kMostRequests}),
          .constants = random_params(random, variant, true)};
}

RandomBatch random_batch(Random& random, const AttentionConfig& config, const Variant& variant) {
  RandomBatch batch{.layout = config.page_size > 0 && random.below(2) ? KvLayout::HND : KvLayout::NHD};
  const int requests = 1 + random.below(kMostRequests);
  for (int r = 0; r < requests; ++r) {
    const int edge = 64 * (1 + random.below(4)) + pick(random, {-1, 0, 1});
    batch.kv_lens.push_back(pick(random, {0, 1, 2 + random.below(30), edge, edge, random.below(700)}));
    const int qo = pick(random, {0, 1, 1, 1, 2 + random.below(6), 15 + random.below(4), random.below(40), 63 + random.below(70)});
    batch.qo_lens.push_back(config.max_qo_len ? std::min(qo, config.max_qo_len) : qo);
  }
  // Double-precision work grows with rows x heads: keep the tallest ones for few heads.
  if (config.num_qo_heads * config.head_dim > 2048)
    for (int& qo : batch.qo_lens) qo = std::min(qo, 20);
  batch.params = random_params(random, variant, false);
  return batch;
}

ParamValues random_params(Random& random, const Variant& variant, bool constant) {
  static const std::map<std::string, std::vector<double>> pools = {
      {"window", {1, 16, 63, 64, 100, 1000}},  // bounds that fall inside, on and beside tiles
      {"chunk", {1, 16, 63, 64, 100, 1000}},
      {"sinks", {0, 1, 4, 70}},
      {"cap", {2, 30, 50}},
      {"bias", {0, -1, -4}},
      {"max_distance", {1, 16, 128}},
      {"floor_scale", {1, 16, 100, 8192}},
      {"rotary_dim", {0, 32}},
      {"theta", {100, 10000, 500000}},
      {"original_context", {64, 8192}},
  };
  ParamValues params;
  // Parts of a composition agree on the constants that they have by default.
  if (constant && variant.components.size() > 1) return params;
  for (const Param& param : variant.params) {
    const auto pool = pools.find(param.name.substr(param.name.find('.') + 1));
    if (param.constant != constant || pool == pools.end()) continue;
    params[param.name] = pool->second[static_cast<std::size_t>(random.below(static_cast<int>(pool->second.size())))];
  }
  return params;
}

}  // namespace heddle::tools
