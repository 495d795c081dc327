#include "planner/layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/error.h"
#include "planner/check_batch.h"
#include "planner/chunks.h"
#include "planner/deal.h"
#include "planner/in_step.h"

namespace heddle {
namespace {

constexpr std::size_t kSectionAlignment = 256;

std::size_t align_section(std::size_t bytes) {
  return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

std::size_t plan_bytes_of(const PlanConfig& config, const Maxima& maxima) {
  std::size_t bytes = sections_begin(config) + row_keys_bytes(config, maxima.max_qo_rows) +
                      transformed_keys_bytes(config, maxima.max_requests);
  for (const Pipeline p : {Pipeline::decode, Pipeline::append})
    bytes += sizeof(WorkItem) * static_cast<std::size_t>(plan_bounds(config, maxima, p).items);
  return bytes +
         align_record(sizeof(RequestRecord) * static_cast<std::size_t>(maxima.max_requests));
}

std::size_t borders_bytes(const PipelineShape& shape) {
  return shape.present
             ? align_record(sizeof(std::int32_t) * static_cast<std::size_t>(shape.num_ctas + 1))
             : 0;
}

// Requests that a pipeline can have to run.
std::int64_t most_requests(const PlanConfig& config, const Maxima& maxima, Pipeline pipeline) {
  const std::int64_t requests = std::min<std::int64_t>(maxima.max_requests, maxima.max_qo_rows);
  if (pipeline == Pipeline::decode || !config.of(Pipeline::decode).present) return requests;
  if (maxima.max_qo_len > 0 &&
      std::int64_t{maxima.max_qo_len} * config.group <= config.max_decode_rows)
    return 0;
  // Those with more rows than decode takes.
  return std::min(requests, maxima.max_qo_rows * config.group / (config.max_decode_rows + 1));
}

}  // namespace

std::size_t cta_begin_offset(const PlanConfig& config, Pipeline pipeline) {
  const std::size_t header = align_record(sizeof(PlanHeader));
  return pipeline == Pipeline::decode ? header
                                      : header + borders_bytes(config.of(Pipeline::decode));
}

std::size_t sections_begin(const PlanConfig& config) {
  return align_item(cta_begin_offset(config, Pipeline::append) +
                    borders_bytes(config.of(Pipeline::append)));
}

std::size_t row_keys_bytes(const PlanConfig& config, std::int64_t num_qo_rows) {
  return config.rows_given ? align_item(sizeof(RowKeys) * static_cast<std::size_t>(num_qo_rows)) : 0;
}

std::int64_t most_transformed_keys(const PlanConfig& config, const Maxima& maxima) {
  constexpr std::int64_t kUsualBytes = std::int64_t{32} << 20;
  if (!config.transforms_keys) return 0;
  const std::int64_t wanted = maxima.max_transformed_keys >= 0
                                  ? maxima.max_transformed_keys
                                  : kUsualBytes / (std::int64_t{2} * config.num_kv_heads * config.head_dim);
  const std::int64_t keys = std::min(wanted, maxima.max_kv_tokens);
  // Bits would depend on whether the rest of the batch has left room.
  return config.batch_invariant && keys < maxima.max_kv_tokens ? 0 : keys;
}

std::size_t transformed_keys_bytes(const PlanConfig& config, std::int64_t num_requests) {
  if (!config.transforms_keys) return 0;
  return align_item((sizeof(TransformedKeys) + sizeof(std::int32_t)) * static_cast<std::size_t>(num_requests));
}

PlanBounds plan_bounds(const PlanConfig& config, const Maxima& maxima, Pipeline pipeline) {
  const PipelineShape& shape = config.of(pipeline);
  if (!shape.present) return {};
  std::int64_t requests = std::min<std::int64_t>(maxima.max_requests, maxima.max_qo_rows);
  if (pipeline == Pipeline::append) requests += most_prefix_parts(config, maxima);
  const std::int64_t ctas = shape.num_ctas;
  // Requests of more than one query tile are listed head by head (split.h). One with t tiles has
  // more than (t - 1) * tile_rows packed rows, which bounds the tiles of all of them.
  std::int64_t tiles = 0;
  const bool one_tile = pipeline == Pipeline::decode ||
                        (!config.share_prefixes && maxima.max_qo_len > 0 &&
                         std::int64_t{maxima.max_qo_len} * config.group <= shape.tile_rows);
  if (!one_tile) {
    std::int64_t rows = maxima.max_qo_rows * config.group;
    // Rows that decode runs are listed once for every state of a prefix that they share.
    if (config.share_prefixes) rows += most_prefix_states(config, maxima) * config.group;
    tiles = rows / shape.tile_rows + std::min(requests, rows / (shape.tile_rows + 1));
  }
  PlanBounds bounds;
  bounds.runs = tiles + requests;
  const std::int64_t heads = config.heads_apart(pipeline);
  const std::int64_t whole_items = tiles * heads + requests;
  if (config.batch_invariant) {
    bounds.partials = ChunkRule(config, pipeline)
                          .most_slots(most_requests(config, maxima, pipeline), maxima.max_kv_tokens,
                                      shape.tile_kv) *
                      heads;
    // A border divides the heads of one item; a piece that joins goes with every slot at most.
    bounds.items = whole_items + (ctas - 1) + 2 * bounds.partials;
    return bounds;
  }
  // A cut inside a stream turns one item into at most four: whole heads, part | part, whole heads.
  bounds.items = whole_items + 3 * (ctas - 1);
  // Those of one query tile too are listed head by head in a batch of few streams, dealt (deal.h) or in step (in_step.h).
  const bool reads_in_step = pipeline == Pipeline::decode && heads_in_step(config, ctas) > 1;
  const std::int64_t few = pipeline == Pipeline::append ? kFewStreams : reads_in_step ? kMostInStep : 0;
  bounds.items += std::min(requests * (heads - 1), few * ctas);
  bounds.partials = ctas;  // the stream that a CTA's share ends in
  return bounds;
}

std::int64_t most_prefix_rows(const PlanConfig& config, const Maxima& maxima) {
  if (!config.share_prefixes) return 0;
  return std::min(maxima.max_qo_rows, std::int64_t{maxima.max_requests} * (config.max_decode_rows / config.group));
}

std::int64_t most_prefix_states(const PlanConfig& config, const Maxima& maxima) {
  const std::int64_t rows = most_prefix_rows(config, maxima);
  const PipelineShape& append = config.of(Pipeline::append);
  const std::int64_t filling = std::int64_t{append.num_ctas} * append.tile_rows / (config.num_kv_heads * config.group);
  return std::max(rows * kMaxPrefixLevels, std::min(rows * kMaxPrefixStates, filling));
}

// Each has two rows at least.
std::int64_t most_prefix_parts(const PlanConfig& config, const Maxima& maxima) {
  return most_prefix_states(config, maxima) / 2;
}

WorkspaceLayout workspace_layout(const PlanConfig& config, const Maxima& maxima) {
  check_config(config);
  check_maxima(config, maxima);
  WorkspaceLayout layout;
  layout.plan_bytes = plan_bytes_of(config, maxima);
  // Offsets within a plan are 32 bit; all factors are bounded, so the sum above cannot wrap.
  if (layout.plan_bytes > std::numeric_limits<std::int32_t>::max()) {
    fail(ErrorKind::invalid_argument,
         "A plan for max_requests = {}, max_qo_rows = {} and max_kv_tokens = {} would take {} "
         "bytes; "
         "at most {} are allowed: lower the maxima.",
         maxima.max_requests, maxima.max_qo_rows, maxima.max_kv_tokens, layout.plan_bytes,
         std::numeric_limits<std::int32_t>::max());
  }
  std::size_t end = align_section(layout.plan_bytes);
  layout.slots_begin = end;
  const auto take = [&end](std::size_t bytes) {
    return std::exchange(end, align_section(end + bytes));
  };
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    const PipelineShape& shape = config.of(p);
    if (!shape.present) continue;
    const PlanBounds bounds = plan_bounds(config, maxima, p);
    WorkspaceLayout::Section& section = layout.section[static_cast<int>(p)];
    section.cta_begin = cta_begin_offset(config, p);
    section.max_partials = static_cast<int>(bounds.partials);
    const std::size_t rows = static_cast<std::size_t>(bounds.partials) *
                             static_cast<std::size_t>(shape.heads_abreast * shape.tile_rows);
    section.partial_o = take(rows * static_cast<std::size_t>(config.vo_dim()) * sizeof(float));
    section.partial_lse = take(rows * sizeof(float));
  }
  if (config.share_prefixes) {
    const std::size_t rows = static_cast<std::size_t>(most_prefix_states(config, maxima)) *
                             static_cast<std::size_t>(config.num_kv_heads * config.group);
    layout.prefix_o = take(rows * static_cast<std::size_t>(config.vo_dim()) * sizeof(float));
    layout.prefix_lse = take(rows * sizeof(float));
  }
  layout.slots_end = end;
  layout.max_transformed_keys = most_transformed_keys(config, maxima);
  layout.transformed_keys = take(static_cast<std::size_t>(layout.max_transformed_keys) * 2 *
                                 static_cast<std::size_t>(config.num_kv_heads * config.head_dim));
  layout.total_bytes = end;
  return layout;
}

}  // namespace heddle
