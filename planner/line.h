// The line of streams and the walk that cuts it. The walk is a template over what is done with
// the pieces, so that pricing a budget and writing the work list cannot disagree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "planner/line_cost.h"
#include "planner/streams.h"

namespace heddle {

struct Line {
  std::span<const StreamRun> runs;
  int num_ctas;
  LineCost cost;
  std::span<const std::int64_t> loads = {};  // what each CTA has to do already; left out: nothing

  std::int64_t load_of(int cta) const { return loads.empty() ? 0 : loads[static_cast<std::size_t>(cta)]; }
};

// Cuts a line by a budget a CTA. The last CTA takes whatever is left.
template <typename Sink>
class LineWalk {
 public:
  LineWalk(const Line& line, std::int64_t budget, Sink& sink)
      : line_(line), cost_(line.cost), budget_(budget), sink_(sink) {
    // A piece is worth at least what it costs. Where budgets are so small that two such pieces do
    // not fit, half a budget is enough, so that a CTA can always end in the middle of a stream.
    const std::int64_t overhead = cost_.part(0);
    const std::int64_t capacity = (budget - overhead) >> LineCost::kTileShift;
    const std::int64_t worth = (overhead >> LineCost::kTileShift) + 1;
    min_tiles_ = std::max<std::int64_t>(1, std::min(worth, (capacity + 1) / 2));
    open_cta();
  }

  void walk() {
    for (const StreamRun& run : line_.runs) {
      const std::int64_t stream = cost_.whole(run.num_tiles());
      const std::int64_t all = stream * run.num_heads();
      if (room_ >= all) {
        room_ -= all;
        sink_.whole(run, run.item.kv_head_begin, run.item.kv_head_end, all);
      } else {
        lay_heads(run, stream);
      }
    }
    while (cta_ < line_.num_ctas) next_cta();
    sink_.close_cta();
  }

 private:
  static constexpr std::int64_t kEndless = INT64_MAX / 4;

  void open_cta() {
    const std::int64_t load = line_.load_of(cta_);
    sink_.open_cta(load);
    room_ = ++cta_ < line_.num_ctas ? budget_ - load : kEndless;
  }
  void next_cta() {
    sink_.close_cta();
    open_cta();
  }

  // A run that a border falls into.
  void lay_heads(const StreamRun& run, std::int64_t stream) {
    for (int head = run.item.kv_head_begin; head < run.item.kv_head_end;) {
      if (room_ >= stream) {
        const int heads =
            static_cast<int>(std::min<std::int64_t>(run.item.kv_head_end - head, room_ / stream));
        room_ -= heads * stream;
        sink_.whole(run, head, head + heads, heads * stream);
        head += heads;
      } else if (tiles_of_piece(run.num_tiles()) > 0) {
        cut(run, head++);
      } else {
        next_cta();
      }
    }
  }

  // Tiles that this CTA takes of a stream that does not fit as a whole: 0 or less if that is not worth it.
  std::int64_t tiles_of_piece(std::int64_t left) const {
    const std::int64_t fit = (room_ - cost_.part(0)) >> LineCost::kTileShift;
    const std::int64_t tiles = std::min(fit, left - min_tiles_);
    return tiles < min_tiles_ ? 0 : tiles;
  }

  void cut(const StreamRun& run, int head) {
    const std::int64_t num_tiles = run.num_tiles();
    std::int64_t begin = 0;
    while (cost_.part(num_tiles - begin) > room_) {
      const std::int64_t tiles = tiles_of_piece(num_tiles - begin);
      if (tiles > 0) sink_.piece(run, head, begin, begin + tiles, cost_.part(tiles));
      begin += tiles;
      next_cta();
    }
    const std::int64_t last = cost_.part(num_tiles - begin);
    sink_.piece(run, head, begin, num_tiles, last);
    room_ -= last;
  }

  const Line& line_;
  const LineCost& cost_;
  const std::int64_t budget_;
  Sink& sink_;
  int cta_ = 0;  // CTAs opened so far
  std::int64_t min_tiles_ = 1;
  std::int64_t room_ = 0;
};

struct LineTotals {
  std::int64_t cost = 0;  // uncut, with what CTAs have to do already
  std::int64_t longest = 0;
};
LineTotals totals_of(const Line& line);

// What a border costs the CTA at most that it falls into the middle of.
inline std::int64_t price_of_cut(const LineCost& cost) { return cost.part(1) + cost.per_partial; }

// Least budget with which the walk always gets on.
inline std::int64_t least_budget(const LineCost& cost, std::int64_t longest_stream) {
  return std::min(longest_stream, cost.part(1));
}

}  // namespace heddle
