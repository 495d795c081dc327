// How large a plan and its workspace can get. Everything here follows from the config and the
// maxima alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/plan.h"

namespace heddle {

// Kernels read records as 16-byte vectors, so every part of a plan starts on one, and items on two
// sectors of 32 bytes.
constexpr std::size_t align_record(std::size_t bytes) { return (bytes + 15) / 16 * 16; }
constexpr std::size_t align_item(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Where the borders of a pipeline's CTAs stand in every plan of this config, so that a kernel finds
// them without reading the header; and where the items, or what stands in front of them (rows' given ranges,
// transformed keys), begin behind.
std::size_t cta_begin_offset(const PlanConfig& config, Pipeline pipeline);
std::size_t sections_begin(const PlanConfig& config);

// What those ranges take in a plan: RowKeys of so many query rows.
std::size_t row_keys_bytes(const PlanConfig& config, std::int64_t num_qo_rows);

// Keys that there is room for once they are transformed, and what those of a batch take in a plan.
std::int64_t most_transformed_keys(const PlanConfig& config, const Maxima& maxima);
std::size_t transformed_keys_bytes(const PlanConfig& config, std::int64_t num_requests);

// Most records of one pipeline that any batch within the maxima can need.
struct PlanBounds {
  std::int64_t runs = 0;  // (request, query tile)
  std::int64_t items = 0;
  std::int64_t partials = 0;
};

PlanBounds plan_bounds(const PlanConfig& config, const Maxima& maxima, Pipeline pipeline);

// Query rows, one behind the other, that there is room for states of shared prefixes for: as many as decode
// can have. (A batch whose decode rows lie further apart shares less.)
std::int64_t most_prefix_rows(const PlanConfig& config, const Maxima& maxima);
// States that there is room for, of all rows together and one head, and parts of prefixes that these may come from:
// kMaxPrefixLevels for each row, and of few rows as many as give every CTA of append a stream.
std::int64_t most_prefix_states(const PlanConfig& config, const Maxima& maxima);
std::int64_t most_prefix_parts(const PlanConfig& config, const Maxima& maxima);

}  // namespace heddle
