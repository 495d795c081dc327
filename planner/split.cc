#include "planner/split.h"

#include <algorithm>

#include "planner/budget.h"
#include "planner/line.h"

namespace heddle {
namespace {

constexpr int kPrecision = 7;  // of the budget

// A walk's load, without writing anything.
struct Pricing : Load {
  void whole(const StreamRun&, int, int, std::int64_t cost) { current += cost; }
  void piece(const StreamRun&, int, std::int64_t, std::int64_t, std::int64_t cost) {
    current += cost;
  }
};

// Writes items and borders as the walk finds them. An item is written once, when its place is
// known: to copy one that has just been written would wait for its stores.
class Writer {
 public:
  Writer(const SplitOutput& out, int num_heads) : out_(out), num_heads_(num_heads) {
    out_.cta_begin[0] = 0;
  }

  void whole(const StreamRun& run, int head_begin, int head_end, std::int64_t cost) {
    load.current += cost;
    if (run.item.request != request_) close_request();
    several_tiles_ |= items > request_items_ && run.item.row_begin != row_begin_;
    request_ = run.item.request;
    row_begin_ = run.item.row_begin;
    const Share share{&run, head_begin, head_end, run.item.tile_begin, run.item.tile_end};
    if (items == cta_items_) {
      first_ = share;
    } else {
      share.write(out_.items[items]);
    }
    ++items;
  }

  // The first piece of a stream goes before the whole items of its CTA, so that it has been
  // published when the last piece, the last item of a later CTA, takes it.
  void piece(const StreamRun& run, int head, std::int64_t begin, std::int64_t end,
             std::int64_t cost) {
    load.current += cost;
    const Share share{&run, head, head + 1, run.item.tile_begin + static_cast<std::int32_t>(begin),
                      run.item.tile_begin + static_cast<std::int32_t>(end)};
    if (begin == 0) first_partial_ = partials;
    if (end == run.num_tiles()) {
      last_ = share;
      last_partial_ = first_partial_;
      last_join_ = partials - first_partial_;
      ++joins;
      return;
    }
    close_request();
    WorkItem& front = out_.items[cta_items_];
    if (first_.run != nullptr)
      write_first(out_.items[items]);
    else if (items > cta_items_)
      out_.items[items] = front;
    share.write(front);
    front.partial = partials++;
    request_items_ = ++items;
  }

  void close_cta() {
    close_request();
    if (first_.run != nullptr) write_first(out_.items[cta_items_]);
    if (last_.run != nullptr) write_last(out_.items[items++]);
    request_items_ = items;
    load.close_cta();
    out_.cta_begin[++ctas_] = items;
    cta_items_ = items;
  }

  // CTAs behind the last one that has work are empty.
  void close_ctas(int num_ctas) {
    while (ctas_ < num_ctas) out_.cta_begin[++ctas_] = items;
  }

  Load load;
  int items = 0;
  int partials = 0;
  int joins = 0;

 private:
  // What an item takes of a run.
  struct Share {
    const StreamRun* run = nullptr;
    std::int32_t head_begin, head_end, tile_begin, tile_end;

    void write(WorkItem& to) const {
      write_item(to, *run, head_begin, head_end, tile_begin, tile_end);
    }
  };

  void write_first(WorkItem& to) {
    first_.write(to);
    first_.run = nullptr;
  }
  void write_last(WorkItem& to) {
    last_.write(to);
    to.partial = last_partial_;
    to.join = last_join_;
    last_.run = nullptr;
  }

  // Several query tiles of one request in this CTA.
  void close_request() {
    if (several_tiles_) {
      if (first_.run != nullptr) write_first(out_.items[cta_items_]);
      items = list_by_head(out_.items, request_items_, items, num_heads_, out_.scratch);
    }
    several_tiles_ = false;
    request_items_ = items;
  }

  SplitOutput out_;
  int num_heads_;
  int ctas_ = 0;
  int cta_items_ = 0;      // where the open CTA's items start
  int request_items_ = 0;  // where the open request's items in it start
  int first_partial_ = 0;  // slot of the open stream's first piece
  Share first_;            // the open CTA's first whole item, while a piece may still go before it
  Share last_;             // its last piece of a stream, if it has one
  int last_partial_ = 0, last_join_ = 0;
  std::int32_t request_ = -1;  // of the last item, and its query tile
  std::int32_t row_begin_ = 0;
  bool several_tiles_ = false;
};

Load price(const Line& line, std::int64_t budget) {
  Pricing pricing;
  LineWalk<Pricing>(line, budget, pricing).walk();
  return pricing;
}

Writer written(const Line& line, std::int64_t budget, const SplitOutput& out) {
  Writer writer(out, line.num_heads);
  LineWalk<Writer>(line, budget, writer).walk();
  writer.close_ctas(line.num_ctas);
  return writer;
}

struct LineTotals {
  std::int64_t cost = 0;  // uncut
  std::int64_t longest = 0;
};

LineTotals totals_of(const Line& line) {
  LineTotals totals;
  for (const StreamRun& run : line.runs) {
    const std::int64_t stream = line.cost.whole(run.num_tiles());
    totals.cost += stream * line.num_heads;
    totals.longest = std::max(totals.longest, stream);
  }
  return totals;
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

SplitResult split_evenly(std::span<const StreamRun> runs, int num_heads, const PipelineShape& shape,
                         const SplitOutput& out) {
  const Line line{runs, num_heads, shape.num_ctas, LineCost(shape.cost)};
  const LineTotals totals = totals_of(line);
  const std::int64_t floor = std::max((totals.cost + line.num_ctas - 1) / line.num_ctas,
                                      least_budget(line.cost, totals.longest));
  // Written straight away with the guess that every border cuts a stream: true of large batches,
  // where walking the line twice would double the time. The others are searched for.
  const std::int64_t guess = floor + line.cost.part(1) + line.cost.per_partial;
  Writer writer = written(line, guess, out);
  if (!writer.load.is_even(line.num_ctas)) {
    const std::int64_t budget =
        search_budget(line.num_ctas, floor, guess, writer.load, kPrecision,
                      [&line](std::int64_t tried) { return price(line, tried); });
    if (budget < writer.load.busiest) writer = written(line, budget, out);
  }
  return {writer.items, writer.partials, writer.joins, writer.load.max_over_mean(line.num_ctas)};
}

}  // namespace heddle
