#include "planner/prefix_parts.h"

#include <algorithm>
#include <array>

#include "planner/layout.h"

namespace heddle {
namespace {

// Levels of the prefixes inside the first one, which stand right behind it.
std::int32_t levels_inside(std::span<const SharedPrefix> prefixes) {
  std::int32_t deepest = prefixes.front().level;
  for (std::size_t i = 1; i < prefixes.size() && prefixes[i].begin < prefixes.front().end; ++i)
    deepest = std::max(deepest, prefixes[i].level);
  return deepest - prefixes.front().level;
}

}  // namespace

PrefixCutter::PrefixCutter(const PlanConfig& config, const Maxima& maxima)
    : config_(config), most_states_(most_prefix_states(config, maxima)), step_(prefix_step(config)) {
  const CostModel& cost = config.of(Pipeline::append).cost;
  const double worth = cost.per_item / cost.per_tile * config.of(Pipeline::append).tile_kv;
  least_ = static_cast<std::int64_t>(worth / step_) + 1;
  parts_.reserve(static_cast<std::size_t>(most_prefix_parts(config, maxima)));
}

std::int64_t PrefixCutter::streams(const SharedPrefix& prefix, const CheckedBatch& batch) const {
  const std::int64_t rows = std::int64_t{batch.qo_begin(prefix.end) - batch.qo_begin(prefix.begin)} * config_.group;
  const std::int32_t tile_rows = config_.of(Pipeline::append).tile_rows;
  return (rows + tile_rows - 1) / tile_rows * config_.num_kv_heads;
}

std::span<const PrefixPart> PrefixCutter::cut(std::span<const SharedPrefix> prefixes, const CheckedBatch& batch) {
  parts_.clear();
  if (prefixes.empty()) return parts_;
  std::int64_t steps = 0;  // of all streams
  std::int32_t end = 0;
  for (const SharedPrefix& p : prefixes) steps += streams(p, batch) * (p.keys() / step_), end = std::max(end, p.end);
  const std::int64_t ctas = config_.of(Pipeline::append).num_ctas;
  const std::int64_t rows = batch.qo_begin(end) - batch.qo_begin(prefixes.front().begin);
  const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxPrefixStates, most_states_ / rows));
  std::array<std::int32_t, kMaxPrefixLevels> states;  // up to the end of the last prefix of each level
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const SharedPrefix& p = prefixes[i];
    const auto level = static_cast<std::size_t>(p.level);
    const std::int32_t front = level > 0 ? states[level - 1] : 0, own = p.keys() / step_;
    const std::int64_t wanted = std::min((own * ctas + steps / 2) / steps, own / least_);
    const std::int32_t room = most - front - levels_inside(prefixes.subspan(i));
    const auto count = static_cast<std::int32_t>(std::clamp<std::int64_t>(wanted, 1, room));
    states[level] = front + count;
    const auto border = [&](std::int64_t part) {
      return p.key_begin + static_cast<std::int32_t>(own * part / count) * step_;
    };
    for (std::int32_t part = 0; part < count; ++part)
      parts_.push_back({p.begin, p.end, border(part), border(part + 1), front + part});
  }
  return parts_;
}

}  // namespace heddle
