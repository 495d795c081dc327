#include "planner/split.h"

#include <algorithm>
#include <cassert>

#include "planner/line.h"

namespace heddle {
namespace {

// What a walk comes to, without writing anything.
struct Pricing {
  std::int64_t current = 0;  // cost of the open CTA
  std::int64_t busiest = 0;
  std::int64_t total = 0;

  void whole(const StreamRun&, int, int, std::int64_t cost) { current += cost; }
  void piece(const StreamRun&, int, std::int64_t, std::int64_t, std::int64_t cost) {
    current += cost;
  }
  void close_cta() {
    busiest = std::max(busiest, current);
    total += current;
    current = 0;
  }
};

// Writes items, merges and borders as the walk finds them.
class Writer {
 public:
  Writer(const SplitOutput& out, int num_heads) : out_(out), num_heads_(num_heads) {
    out_.cta_begin[0] = 0;
  }

  void whole(const StreamRun& run, int head_begin, int head_end, std::int64_t cost) {
    pricing.current += cost;
    add(run, head_begin, head_end, 0, run.num_tiles, -1, -1);
  }

  void piece(const StreamRun& run, int head, std::int64_t begin, std::int64_t end,
             std::int64_t cost) {
    pricing.current += cost;
    if (begin == 0) {
      out_.merges[merges++] = {run.request, run.row_begin, run.num_rows, head, partials, 0, {0, 0}};
    }
    out_.merges[merges - 1].num_partials += 1;
    has_partial_ = true;
    add(run, head, head + 1, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
        partials++, merges - 1);
  }

  void close_cta() {
    close_request();
    if (has_partial_) put_partials_first();
    has_partial_ = false;
    pricing.close_cta();
    out_.cta_begin[++ctas_] = items;
    cta_items_ = request_items_ = items;
  }

  // CTAs behind the last one that has work are empty.
  void close_ctas(int num_ctas) {
    while (ctas_ < num_ctas) out_.cta_begin[++ctas_] = items;
  }

  Pricing pricing;
  int items = 0;
  int partials = 0;
  int merges = 0;

 private:
  void add(const StreamRun& run, int head_begin, int head_end, std::int32_t begin, std::int32_t end,
           int partial, int merge) {
    if (items > request_items_) {
      const WorkItem& last = out_.items[items - 1];
      if (last.request != run.request)
        close_request();
      else if (last.row_begin != run.row_begin)
        several_tiles_ = true;
    }
    out_.items[items++] = {run.request,
                           run.row_begin,
                           run.num_rows,
                           head_begin,
                           head_end,
                           run.tile_begin + begin,
                           run.tile_begin + end,
                           run.gap_begin,
                           run.gap_tiles,
                           partial,
                           merge,
                           0};
  }

  // Several query tiles of one request in this CTA: lists them head by head (streams.h says why).
  void close_request() {
    if (several_tiles_) {
      const std::size_t count = static_cast<std::size_t>(items - request_items_);
      std::copy_n(out_.items + request_items_, count, out_.scratch.data());
      items = request_items_;
      for (int head = 0; head < num_heads_; ++head) {
        for (const WorkItem& item : out_.scratch.first(count)) {
          if (head < item.kv_head_begin || head >= item.kv_head_end) continue;
          out_.items[items] = item;
          out_.items[items].kv_head_begin = head;
          out_.items[items++].kv_head_end = head + 1;
        }
      }
    }
    several_tiles_ = false;
    request_items_ = items;
  }

  // Partial states are written early, so that merging them hides under the whole items.
  void put_partials_first() {
    WorkItem* front = out_.items + cta_items_;
    for (WorkItem* item = front; item != out_.items + items; ++item) {
      if (item->partial >= 0) std::swap(*front++, *item);
    }
  }

  const SplitOutput& out_;
  const int num_heads_;
  int ctas_ = 0;
  int cta_items_ = 0;      // where the open CTA's items start
  int request_items_ = 0;  // where the open request's items in it start
  bool several_tiles_ = false;
  bool has_partial_ = false;
};

Pricing price(const Line& line, std::int64_t budget) {
  Pricing pricing;
  LineWalk<Pricing>(line, budget, pricing).walk();
  return pricing;
}

struct LineTotals {
  std::int64_t cost = 0;  // uncut
  std::int64_t longest = 0;
};

LineTotals totals_of(const Line& line) {
  LineTotals totals;
  for (const StreamRun& run : line.runs) {
    const std::int64_t stream = line.cost.whole(run.num_tiles);
    totals.cost += stream * line.num_heads;
    totals.longest = std::max(totals.longest, stream);
  }
  return totals;
}

std::int64_t choose_budget(const Line& line, const LineTotals& totals) {
  const std::int64_t floor = std::max((totals.cost + line.num_ctas - 1) / line.num_ctas,
                                      least_budget(line.cost, totals.longest));
  std::int64_t low = floor, high = floor + line.cost.part(1) + line.cost.per_partial;
  while (price(line, high).busiest > high) {
    low = high;
    high += high / 32 + LineCost::of_tiles(1);
  }
  while (high - low > std::max(LineCost::of_tiles(1) / 4, high / 256)) {
    const std::int64_t middle = low + (high - low) / 2;
    (price(line, middle).busiest > middle ? low : high) = middle;
  }
  return high;
}

}  // namespace

SplitResult split_evenly(std::span<const StreamRun> runs, int num_heads, const PipelineShape& shape,
                         const SplitOutput& out) {
  const Line line{runs, num_heads, shape.num_ctas, LineCost(shape.cost)};
  Writer writer(out, num_heads);
  if (!runs.empty()) LineWalk<Writer>(line, choose_budget(line, totals_of(line)), writer).walk();
  writer.close_ctas(line.num_ctas);
  SplitResult result{writer.items, writer.partials, writer.merges, 1.0};
  if (writer.pricing.total > 0) {
    result.max_over_mean = static_cast<double>(writer.pricing.busiest) * line.num_ctas /
                           static_cast<double>(writer.pricing.total);
  }
  return result;
}

}  // namespace heddle
