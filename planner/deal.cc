#include "planner/deal.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "planner/budget.h"

namespace heddle {

Dealer::Dealer(std::int64_t max_runs, std::int64_t max_items, int num_ctas)
    : nodes_(2 * std::bit_ceil(static_cast<std::size_t>(num_ctas))),
      order_(static_cast<std::size_t>(max_runs)),
      hands_(static_cast<std::size_t>(max_items)),
      rest_(static_cast<std::size_t>(max_items)),
      loads_(static_cast<std::size_t>(num_ctas)),
      counts_(static_cast<std::size_t>(num_ctas)) {}

// A deal to the end must gain more than a hundredth: it forgets L2.
SplitResult Dealer::split(const Line& line, int num_heads, std::int32_t most_tiles, const SplitOutput& out) {
  const SplitResult cut = most_tiles >= kManyTiles ? split_by_head(line, num_heads, out) : split_evenly(line, num_heads, out);
  if (static_cast<std::int64_t>(line.runs.size()) * num_heads > kFewStreams * line.num_ctas) return cut;
  const std::int64_t worth = cut.busiest - cut.busiest / 100;
  const LineTotals totals = totals_of(line);
  if (std::max(totals.cost / line.num_ctas, totals.longest) >= worth) return cut;  // no deal is more even than that
  deal_all(line);
  const SplitResult whole = result_of_hands(line);
  if (whole.busiest >= worth) return cut;
  std::fill_n(out.cta_begin, line.num_ctas + 1, 0);
  write_in_front(line, out);
  return whole;
}

// --- head by head -----------------------------------------------------------------------------

// Where CTAs have less than a stream and a half each, nothing is dealt.
SplitResult Dealer::split_by_head(const Line& line, int num_heads, const SplitOutput& out) {
  const std::int64_t ctas = line.num_ctas;
  deal_by_head(line, (totals_of(line).cost + ctas - 1) / ctas + price_of_cut(line.cost));
  if (num_hands_ == 0) return split_evenly(line, num_heads, out);
  std::transform(loads(line.num_ctas).begin(), loads(line.num_ctas).end(), loads_.begin(),
                 [](const Node& node) { return node.load; });
  const Line rest{std::span(rest_).first(num_rest_), line.num_ctas, line.cost, loads_};
  SplitResult result =
      split_evenly(rest, num_heads, {out.cta_begin, out.items + num_hands_, out.scratch});
  write_in_front(line, out);
  result.items += static_cast<int>(num_hands_);
  return result;
}

// From the first stream on that no CTA has room for, all are left.
void Dealer::deal_by_head(const Line& line, std::int64_t budget) {
  num_rest_ = 0;
  begin_tournament(line.num_ctas);
  bool goes_on = true;
  for (auto begin = line.runs.begin(), end = begin; begin != line.runs.end(); begin = end) {
    end = std::find_if(begin, line.runs.end(),
                       [&](const StreamRun& run) { return run.item.request != begin->item.request; });
    const WorkItem& first = begin->item;
    if (end - begin < kManyTiles) {
      for (auto run = begin; run != end; ++run) leave(*run, first.kv_head_begin, first.kv_head_end);
      continue;
    }
    for (int head = first.kv_head_begin; head < first.kv_head_end; ++head) {
      for (auto run = begin; run != end; ++run) {
        goes_on = goes_on && has_room(line, budget, *run);
        if (goes_on)
          give(line, *run, head);
        else
          leave(*run, head, head + 1);
      }
    }
  }
}

// With half a stream more behind it: crumbs of a stream that goes to many CTAs are joined one by one.
bool Dealer::has_room(const Line& line, std::int64_t budget, const StreamRun& run) const {
  const std::int64_t cost = line.cost.whole(run.num_tiles());
  return nodes_[1].load + cost + cost / 2 <= budget;
}

void Dealer::leave(const StreamRun& run, int head_begin, int head_end) {
  write_item(rest_[num_rest_++].item, run, head_begin, head_end, run.item.tile_begin, run.item.tile_end);
}

// --- to the end -------------------------------------------------------------------------------

void Dealer::deal_all(const Line& line) {
  const auto order = std::span(order_).first(line.runs.size());
  std::iota(order.begin(), order.end(), 0);
  const auto run_at = [&](std::int32_t i) -> const StreamRun& { return line.runs[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const std::int32_t of_a = run_at(a).num_tiles(), of_b = run_at(b).num_tiles();
    return of_a != of_b ? of_a > of_b : a < b;
  });
  begin_tournament(line.num_ctas);
  for (const std::int32_t i : order) {
    const WorkItem& item = run_at(i).item;
    for (int head = item.kv_head_begin; head < item.kv_head_end; ++head) give(line, run_at(i), head);
  }
}

SplitResult Dealer::result_of_hands(const Line& line) const {
  Load load;
  for (const Node& node : loads(line.num_ctas)) {
    load.current = node.load;
    load.close_cta();
  }
  return {.items = static_cast<int>(num_hands_), .max_over_mean = load.max_over_mean(line.num_ctas), .busiest = load.busiest};
}

// --- dealing ----------------------------------------------------------------------------------

void Dealer::begin_tournament(int num_ctas) {
  num_hands_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
  const std::size_t leaves = nodes_.size() / 2;
  for (std::size_t i = 0; i < leaves; ++i) {
    const auto cta = static_cast<std::int32_t>(i);
    nodes_[leaves + i] = {cta < num_ctas ? 0 : std::numeric_limits<std::int64_t>::max(), cta};
  }
  for (std::size_t i = leaves - 1; i > 0; --i) nodes_[i] = nodes_[2 * i];
}

void Dealer::give(const Line& line, const StreamRun& run, int head) {
  const std::int32_t cta = nodes_[1].cta;
  add_to_least(line.cost.whole(run.num_tiles()));
  ++counts_[static_cast<std::size_t>(cta)];
  hands_[num_hands_++] = {&run, head, cta};
}

// Of equals the one with the lower number wins.
void Dealer::add_to_least(std::int64_t cost) {
  std::size_t i = nodes_.size() / 2 + static_cast<std::size_t>(nodes_[1].cta);
  nodes_[i].load += cost;
  for (Node winner = nodes_[i]; i > 1;) {
    const Node other = nodes_[i ^ 1];
    const bool is_won = other.load < winner.load || (other.load == winner.load && other.cta < winner.cta);
    winner = {is_won ? other.load : winner.load, is_won ? other.cta : winner.cta};
    nodes_[i /= 2] = winner;
  }
}

// What was split stands behind the room for all hands. Each CTA's part moves to behind its own hands: never past
// another's part that has yet to move, as these lie further behind.
void Dealer::write_in_front(const Line& line, const SplitOutput& out) {
  const WorkItem* split = out.items + num_hands_;
  WorkItem* to = out.items;
  for (int cta = 0; cta < line.num_ctas; ++cta) {
    std::int32_t& count = counts_[static_cast<std::size_t>(cta)];
    const WorkItem* const split_end = out.items + num_hands_ + out.cta_begin[cta + 1];
    WorkItem* const behind = to + count;
    count = static_cast<std::int32_t>(to - out.items);
    to = std::copy(split, split_end, behind);
    split = split_end;
    out.cta_begin[cta + 1] = static_cast<std::int32_t>(to - out.items);
  }
  for (const Hand& hand : std::span(hands_).first(num_hands_))
    write_item(out.items[counts_[static_cast<std::size_t>(hand.cta)]++], *hand.run, hand.head, hand.head + 1,
               hand.run->item.tile_begin, hand.run->item.tile_end);
}

}  // namespace heddle
