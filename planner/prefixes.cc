#include "planner/prefixes.h"

#include <algorithm>
#include <numeric>

#include "planner/streams.h"

namespace heddle {
namespace {

bool all_rows_see_alike(const MaskBounds& mask) {
  return mask.window_left == kUnbounded && mask.sink == 0 && (mask.causal || mask.window_right == kUnbounded);
}

class Finder {
 public:
  Finder(const PlanConfig& config, const CheckedBatch& batch)
      : config_(config),
        batch_(batch),
        ids_(batch.batch.kv_indices),
        step_(std::lcm(config.of(Pipeline::append).tile_kv, config.page_size)) {}

  std::size_t find(std::span<SharedPrefix> out) const {
    std::size_t size = 0;
    for (int r = 0; r < batch_.num_requests;) {
      const SharedPrefix group = group_at(r);
      if (group.keys > 0 && is_worth_it(group)) out[size++] = group;
      r = std::max(group.end, r + 1);
    }
    return size;
  }

 private:
  // Grows as long as the keys that need not be read again become more.
  SharedPrefix group_at(int first) const {
    SharedPrefix group{first, first + 1, 0};
    std::int64_t keys = shareable_keys(first), saved = 0;
    while (group.end < batch_.num_requests && keys > 0) {
      keys = std::min({keys, shareable_keys(group.end), equal_keys(first, group.end, keys)}) / step_ * step_;
      const std::int64_t saves = keys * (group.end - first);
      if (saves <= saved) break;
      saved = saves;
      group.keys = static_cast<std::int32_t>(keys);
      ++group.end;
    }
    return group;
  }

  // Keys in front of all of a request's query rows, so that every row sees them.
  std::int64_t shareable_keys(int r) const {
    const std::int32_t qo_len = batch_.qo_len(r);
    if (qo_len == 0 || pipeline_of(config_, qo_len) != Pipeline::decode) return 0;
    return std::max(0, batch_.kv_len(r) - qo_len) / step_ * step_;
  }

  // Keys of the leading pages, of at most `most` keys, that two requests have in common.
  std::int64_t equal_keys(int a, int b, std::int64_t most) const {
    const std::int32_t* const first = ids_.data() + batch_.kv_offset(a);
    const std::int32_t* const second = ids_.data() + batch_.kv_offset(b);
    const std::int64_t pages = std::min(most, shareable_keys(b)) / config_.page_size;
    return (std::mismatch(first, first + pages, second).first - first) * config_.page_size;
  }

  // The time of all CTAs with and without, by the cost models.
  bool is_worth_it(const SharedPrefix& group) const {
    const PipelineShape &decode = config_.of(Pipeline::decode), &append = config_.of(Pipeline::append);
    const std::int64_t rows =
        std::int64_t{batch_.qo_begin(group.end) - batch_.qo_begin(group.begin)} * config_.group;
    const double apart = decode.cost.per_tile * group.keys / decode.tile_kv * (group.end - group.begin) / decode.num_ctas;
    const double together = append.cost.per_tile * group.keys / append.tile_kv *
                            static_cast<double>((rows + append.tile_rows - 1) / append.tile_rows) / append.num_ctas;
    return (apart - together) * config_.num_kv_heads > config_.sharing_cost;
  }

  const PlanConfig& config_;
  const CheckedBatch& batch_;
  std::span<const std::int32_t> ids_;
  std::int64_t step_;
};

}  // namespace

std::size_t find_prefixes(const PlanConfig& config, const MaskBounds& mask, const CheckedBatch& batch,
                          std::span<SharedPrefix> out) {
  return all_rows_see_alike(mask) ? Finder(config, batch).find(out) : 0;
}

}  // namespace heddle
