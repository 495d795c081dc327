#include "planner/split.h"

#include <algorithm>

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

// Writes items and borders as the walk finds them. An item is written once, when its place is known:
// to copy one that has just been written would wait for its stores.
class Writer {
 public:
  Writer(const SplitOutput& out, int num_heads) : out_(out), num_heads_(num_heads) {
    out_.cta_begin[0] = 0;
  }

  void whole(const StreamRun& run, int head_begin, int head_end, std::int64_t cost) {
    pricing.current += cost;
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

  // The first piece of a stream goes before the whole items of its CTA, so that it has been published
  // when the last piece, the last item of a later CTA, takes it.
  void piece(const StreamRun& run, int head, std::int64_t begin, std::int64_t end,
             std::int64_t cost) {
    pricing.current += cost;
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
    pricing.close_cta();
    out_.cta_begin[++ctas_] = items;
    cta_items_ = items;
  }

  // CTAs behind the last one that has work are empty.
  void close_ctas(int num_ctas) {
    while (ctas_ < num_ctas) out_.cta_begin[++ctas_] = items;
  }

  Pricing pricing;
  int items = 0;
  int partials = 0;
  int joins = 0;

 private:
  // What an item takes of a run.
  struct Share {
    const StreamRun* run = nullptr;
    std::int32_t head_begin, head_end, tile_begin, tile_end;

    void write(WorkItem& to) const {
      to = run->item;
      to.kv_head_begin = head_begin;
      to.kv_head_end = head_end;
      to.tile_begin = tile_begin;
      to.tile_end = tile_end;
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

  // Several query tiles of one request in this CTA: lists them head by head (streams.h says why).
  void close_request() {
    if (several_tiles_) {
      if (first_.run != nullptr) write_first(out_.items[cta_items_]);
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

  SplitOutput out_;
  int num_heads_;
  int ctas_ = 0;
  int cta_items_ = 0;          // where the open CTA's items start
  int request_items_ = 0;      // where the open request's items in it start
  int first_partial_ = 0;      // slot of the open stream's first piece
  Share first_;  // the open CTA's first whole item, while a piece may still go before it
  Share last_;   // its last piece of a stream, if it has one
  int last_partial_ = 0, last_join_ = 0;
  std::int32_t request_ = -1;  // of the last item, and its query tile
  std::int32_t row_begin_ = 0;
  bool several_tiles_ = false;
};

Pricing price(const Line& line, std::int64_t budget) {
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

// Close enough to even that another walk over the line would cost more than it gains.
bool is_even(const Pricing& pricing, int num_ctas) {
  return pricing.busiest * num_ctas <= pricing.total + pricing.total / 100;
}

// Finds the smallest budget that holds the line, to half a tile or 1/128. `pricing` is what the
// budget `tried` came to.
std::int64_t search_budget(const Line& line, std::int64_t floor, std::int64_t tried,
                           Pricing pricing) {
  constexpr std::int64_t kHalfTile = LineCost::of_tiles(1) / 2;
  std::int64_t low = floor, high = tried;
  while (pricing.busiest > high) {
    low = high;
    high += (pricing.busiest - high) / line.num_ctas + high / 256 + kHalfTile;
    pricing = price(line, high);
  }
  high = pricing.busiest;
  // Uncut streams cost less than assumed; what they really cost is the best next guess.
  std::int64_t middle = pricing.total / line.num_ctas + kHalfTile;
  while (!is_even(pricing, line.num_ctas) && high - low > std::max(kHalfTile, high / 128)) {
    if (middle <= low || middle >= high) middle = low + (high - low) / 2;
    const Pricing probe = price(line, middle);
    if (probe.busiest > middle) {
      low = middle;
    } else {
      high = probe.busiest;
      pricing = probe;
    }
    middle = low + (high - low) / 2;
  }
  return high;
}

}  // namespace

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
  if (!is_even(writer.pricing, line.num_ctas)) {
    const std::int64_t budget = search_budget(line, floor, guess, writer.pricing);
    if (budget < writer.pricing.busiest) writer = written(line, budget, out);
  }
  SplitResult result{writer.items, writer.partials, writer.joins, 1.0};
  if (writer.pricing.total > 0) {
    result.max_over_mean = static_cast<double>(writer.pricing.busiest) * line.num_ctas /
                           static_cast<double>(writer.pricing.total);
  }
  return result;
}

}  // namespace heddle
