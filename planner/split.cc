#include "planner/split.h"

#include <algorithm>

#include "planner/budget.h"
#include "planner/line.h"
#include "planner/line_writer.h"

namespace heddle {
namespace {

constexpr int kPrecision = 7;  // of the budget

Load price(const Line& line, std::int64_t budget) {
  Pricing pricing;
  LineWalk<Pricing>(line, budget, pricing).walk();
  return pricing;
}

LineWriter written(const Line& line, int num_heads, std::int64_t budget, const SplitOutput& out) {
  LineWriter writer(out, num_heads);
  LineWalk<LineWriter>(line, budget, writer).walk();
  return writer;
}

}  // namespace

int list_by_head(WorkItem* items, int begin, int end, int num_heads, std::span<WorkItem> scratch) {
  const std::span<WorkItem> source = scratch.first(static_cast<std::size_t>(end - begin));
  std::copy_n(items + begin, source.size(), source.data());
  int size = begin;
  for (int head = 0; head < num_heads; ++head) {
    for (const WorkItem& item : source) {
      if (head < item.kv_head_begin || head >= item.kv_head_end) continue;
      items[size] = item;
      items[size].kv_head_begin = head;
      items[size++].kv_head_end = head + 1;
    }
  }
  return size;
}

LineTotals totals_of(const Line& line) {
  LineTotals totals;
  for (const StreamRun& run : line.runs) {
    const std::int64_t stream = line.cost.whole(run.num_tiles());
    totals.cost += stream * run.num_heads();
    totals.longest = std::max(totals.longest, stream);
  }
  for (const std::int64_t load : line.loads) totals.cost += load;
  return totals;
}

SplitResult split_evenly(const Line& line, int num_heads, const SplitOutput& out) {
  const LineTotals totals = totals_of(line);
  const std::int64_t floor = std::max((totals.cost + line.num_ctas - 1) / line.num_ctas,
                                      least_budget(line.cost, totals.longest));
  // Written straight away with the guess that every border cuts a stream: true of large batches,
  // where walking the line twice would double the time. The others are searched for.
  const std::int64_t guess = floor + price_of_cut(line.cost);
  LineWriter writer = written(line, num_heads, guess, out);
  if (!writer.load.is_even(line.num_ctas)) {
    const std::int64_t budget =
        search_budget(line.num_ctas, floor, guess, writer.load, kPrecision,
                      [&line](std::int64_t tried) { return price(line, tried); });
    if (budget < writer.load.busiest) writer = written(line, num_heads, budget, out);
  }
  return {writer.items, writer.partials, writer.joins, writer.load.max_over_mean(line.num_ctas), writer.load.busiest};
}

}  // namespace heddle
