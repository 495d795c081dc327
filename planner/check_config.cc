#include <cstdint>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "planner/check_batch.h"
#include "planner/refuse.h"

namespace heddle {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kPipelineNames[] = {"decode", "append"};

void check_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    refuse("{} is {}; it must be from {} to {}.", name, value, low, high);
  }
}

void check_pipeline(std::string_view name, const PipelineShape& shape) {
  const CostModel& cost = shape.cost;
  check_range(fmt::format("num_ctas of the {} pipeline", name), shape.num_ctas, 1, 65536);
  check_range(fmt::format("tile_rows of the {} pipeline", name), shape.tile_rows, 1, 4096);
  check_range(fmt::format("tile_kv of the {} pipeline", name), shape.tile_kv, 1, 4096);
  // The ratios keep fixed-point costs of the longest batch within 64 bits (split.h).
  if (!(cost.per_tile > 0) || !(cost.per_item >= 0) || !(cost.per_partial >= 0) ||
      !(cost.per_item <= 4096 * cost.per_tile) || !(cost.per_partial <= 4096 * cost.per_tile)) {
    refuse(
        "The cost model of the {} pipeline is per_item {}, per_tile {}, per_partial {}; per_tile "
        "must be "
        "positive and the others from 0 to 4096 times per_tile.",
        name, cost.per_item, cost.per_tile, cost.per_partial);
  }
}

void check_heads_abreast(const PlanConfig& config) {
  for (int p = 0; p < kNumPipelines; ++p) {
    const PipelineShape& shape = config.pipeline[p];
    const int most = static_cast<Pipeline>(p) == Pipeline::decode ? config.num_kv_heads : 1;
    if (shape.heads_abreast >= 1 && shape.heads_abreast <= most && config.num_kv_heads % shape.heads_abreast == 0)
      continue;
    refuse("heads_abreast of the {} pipeline is {}; it must be 1, or, of decode, a divisor of num_kv_heads = {}.", kPipelineNames[p],
           shape.heads_abreast, config.num_kv_heads);
  }
}

void check_sharing(const PlanConfig& config) {
  if (!config.share_prefixes) return;
  if (config.page_size == 0) refuse("share_prefixes needs pages; this plan is for ragged K/V (page_size 0).");
  if (config.batch_invariant)
    refuse("share_prefixes and batch_invariant exclude each other: what is shared depends on the rest of the batch.");
  if (config.rows_given)
    refuse("share_prefixes and rows_given exclude each other: rows with ranges of their own see different keys of a prefix.");
  if (!(config.sharing_cost >= 0))
    refuse("sharing_cost is {}; it must not be negative.", config.sharing_cost);
  for (int p = 0; p < kNumPipelines; ++p)
    if (!config.pipeline[p].present)
      refuse("share_prefixes needs both pipelines; the {} pipeline is not present.", kPipelineNames[p]);
}

void check_transforms(const PlanConfig& config) {
  if (!config.transforms_keys) return;
  if (!config.of(Pipeline::append).present)
    refuse("transforms_keys needs the append pipeline, which is not present.");
  if (config.share_prefixes) refuse("transforms_keys and share_prefixes exclude each other: a prefix has no request of its own.");
  if (config.rows_given)
    refuse("transforms_keys and rows_given exclude each other: keys between the rows' ranges must not be read.");
}

}  // namespace

void check_config(const PlanConfig& config) {
  check_range("num_kv_heads", config.num_kv_heads, 1, 4096);
  check_range("group (num_qo_heads / num_kv_heads)", config.group, 1, 4096);
  check_range("head_dim", config.head_dim, 1, 4096);
  check_range("head_dim_vo", config.head_dim_vo, 0, 4096);
  check_range("page_size", config.page_size, 0, 1 << 20);
  const PipelineShape& decode = config.of(Pipeline::decode);
  if (!decode.present && !config.of(Pipeline::append).present) {
    refuse(
        "The plan config has neither a decode nor an append pipeline; at least one must be "
        "present.");
  }
  for (int p = 0; p < kNumPipelines; ++p) {
    if (config.pipeline[p].present) check_pipeline(kPipelineNames[p], config.pipeline[p]);
  }
  check_heads_abreast(config);
  check_sharing(config);
  check_transforms(config);
  check_range("max_decode_rows", config.max_decode_rows, 0, 4096);
  if (decode.present && config.max_decode_rows > decode.tile_rows) {
    refuse("max_decode_rows is {}; it must be at most the {} tile_rows of the decode pipeline.",
           config.max_decode_rows, decode.tile_rows);
  }
}

void check_maxima(const PlanConfig& config, const Maxima& maxima) {
  check_range("max_requests", maxima.max_requests, 0, 1 << 24);
  check_range("max_qo_rows", maxima.max_qo_rows, 0, kMaxInt);
  check_range("max_kv_tokens", maxima.max_kv_tokens, 0, std::int64_t{1} << 40);
  check_range("max_qo_len", maxima.max_qo_len, 0, kMaxInt);
  check_range("max_transformed_keys", maxima.max_transformed_keys, -1, kMaxInt);
  if (maxima.max_transformed_keys > 0 && !config.transforms_keys)
    refuse(
        "max_transformed_keys is {}, but no keys are transformed ahead of append here: that takes the append pipeline "
        "and a variant with a key_transform, without given ranges, append_kv = transform and share_prefixes. It must be 0 "
        "or -1.",
        maxima.max_transformed_keys);
  if (!config.of(Pipeline::append).present &&
      std::int64_t{maxima.max_qo_len} * config.group > config.max_decode_rows) {
    refuse(
        "max_qo_len is {}, which makes {} packed rows with {} query heads to a kv head; without "
        "the append pipeline "
        "at most {} rows are allowed.",
        maxima.max_qo_len, std::int64_t{maxima.max_qo_len} * config.group, config.group,
        config.max_decode_rows);
  }
}

void check_mask(const MaskBounds& mask) {
  if (mask.causal != 0 && mask.causal != 1)
    refuse("The mask's causal is {}; it must be 0 or 1.", mask.causal);
  if (mask.window_left < 0)
    refuse("The mask's window_left is {}; it must not be negative.", mask.window_left);
  if (mask.window_right < 0)
    refuse("The mask's window_right is {}; it must not be negative.", mask.window_right);
  if (mask.sink < 0) refuse("The mask's sink is {}; it must not be negative.", mask.sink);
}

}  // namespace heddle
