#include "planner/in_step.h"

#include <algorithm>

namespace heddle {

// The most that divide the model's heads and leave no CTA idle.
int heads_in_step(const PlanConfig& config, std::int64_t streams) {
  const int num_ctas = config.of(Pipeline::decode).num_ctas, heads = config.heads_apart(Pipeline::decode);
  if (config.batch_invariant || config.head_dim + config.vo_dim() < kLeastWidthInStep) return 1;
  if (streams < num_ctas || streams > kMostInStep * num_ctas) return 1;
  int lanes = heads;
  while (heads % lanes != 0 || num_ctas % lanes != 0) --lanes;
  return lanes;
}

InStepSplit::InStepSplit(const PlanConfig& config, std::int64_t max_runs) {
  const std::int64_t ctas = config.of(Pipeline::decode).num_ctas;
  const auto runs = static_cast<std::size_t>(std::min(max_runs, kMostInStep * ctas / config.heads_apart(Pipeline::decode)));
  runs_.resize(runs);
  items_.resize(2 * runs + 2 * static_cast<std::size_t>(ctas));
  group_begin_.resize(static_cast<std::size_t>(ctas) + 1);
}

SplitResult InStepSplit::split(const Line& line, const PlanConfig& config, const SplitOutput& out) {
  const int num_heads = config.heads_apart(Pipeline::decode);
  const int lanes = heads_in_step(config, static_cast<std::int64_t>(line.runs.size()) * num_heads);
  if (lanes == 1) return split_evenly(line, num_heads, out);
  SplitResult result = split_lane(line, lanes, num_heads, out);
  write_lanes(line.num_ctas, lanes, result, out);
  return result;
}

SplitResult InStepSplit::split_lane(const Line& line, int lanes, int num_heads, const SplitOutput& out) {
  const std::span<StreamRun> runs = std::span(runs_).first(line.runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i] = line.runs[i];
    runs[i].item.kv_head_end = num_heads / lanes;
  }
  return split_evenly({runs, line.num_ctas / lanes, line.cost}, num_heads / lanes, {group_begin_.data(), items_.data(), out.scratch});
}

// Each item of a group becomes one of every lane for each of its heads. A lane has its own slots.
void InStepSplit::write_lanes(int num_ctas, int lanes, SplitResult& of_lane, const SplitOutput& out) const {
  WorkItem* to = out.items;
  out.cta_begin[0] = 0;
  for (int cta = 0; cta < num_ctas; ++cta) {
    const int group = cta / lanes, lane = cta % lanes;
    for (std::int32_t i = group_begin_[static_cast<std::size_t>(group)]; i < group_begin_[static_cast<std::size_t>(group) + 1]; ++i) {
      const WorkItem& item = items_[static_cast<std::size_t>(i)];
      const std::int32_t partial = item.partial < 0 ? -1 : item.partial + lane * of_lane.partials;
      for (std::int32_t head = item.kv_head_begin; head < item.kv_head_end; ++head) {
        WorkItem copy = item;
        copy.kv_head_begin = head * lanes + lane;
        copy.kv_head_end = copy.kv_head_begin + 1;
        copy.partial = partial;
        *to++ = copy;
      }
    }
    out.cta_begin[cta + 1] = static_cast<std::int32_t>(to - out.items);
  }
  of_lane.items = static_cast<int>(to - out.items);
  of_lane.partials *= lanes;
  of_lane.joins *= lanes;
}

}  // namespace heddle
