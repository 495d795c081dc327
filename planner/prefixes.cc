#include "planner/prefixes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "planner/layout.h"
#include "planner/streams.h"

namespace heddle {
namespace {

// Nodes in a row that are tried without: a tree that splits one request after the other has as many
// levels as requests.
constexpr int kMostDropped = 16;

bool all_rows_see_alike(const MaskBounds& mask) {
  return mask.window_left == kUnbounded && mask.sink == 0 && (mask.causal || mask.window_right == kUnbounded);
}

// Leading entries that are equal.
std::int64_t equal_entries(const std::int32_t* a, const std::int32_t* b, std::int64_t count) {
  constexpr std::int64_t kBlock = 64;  // at memcmp's pace
  std::int64_t i = 0;
  while (i + kBlock <= count && std::memcmp(a + i, b + i, kBlock * sizeof *a) == 0) i += kBlock;
  return std::mismatch(a + i, a + count, b + i).first - a;
}

}  // namespace

std::int32_t prefix_step(const PlanConfig& config) {
  return std::lcm(config.of(Pipeline::append).tile_kv, config.page_size);
}

PrefixFinder::PrefixFinder(const PlanConfig& config, const Maxima& maxima)
    : config_(config),
      most_rows_(most_prefix_rows(config, maxima)),
      step_(prefix_step(config)) {
  const auto nodes = static_cast<std::size_t>(maxima.max_requests) + 1;
  nodes_.reserve(nodes);
  open_.reserve(nodes);
  found_.reserve(nodes);
}

std::span<const SharedPrefix> PrefixFinder::find(const MaskBounds& mask, const CheckedBatch& batch) {
  found_.clear();
  if (!all_rows_see_alike(mask)) return found_;
  grow_tree(batch);
  // The second kernel is paid for once.
  if (best_of_children(nodes_[0], 0, kMaxPrefixLevels, 0) > config_.sharing_cost)
    choose(nodes_[0], 0, kMaxPrefixLevels, 0);
  keep_what_has_room(batch);
  return found_;
}

// There are states for so many rows of q from the first group's on. What is inside a group goes with it.
void PrefixFinder::keep_what_has_room(const CheckedBatch& batch) {
  if (found_.empty()) return;
  const std::int64_t end = batch.qo_begin(found_.front().begin) + most_rows_;
  bool has_room = true;
  std::erase_if(found_, [&](const SharedPrefix& p) {
    if (p.level == 0) has_room = batch.qo_begin(p.end) <= end;
    return !has_room;
  });
}

// --- the tree -------------------------------------------------------------------------------------

// Keys in front of all of a request's query rows, so that every row sees them.
std::int64_t PrefixFinder::shareable_keys(const CheckedBatch& batch, int request) const {
  const std::int32_t qo_len = batch.qo_len(request);
  if (qo_len == 0 || pipeline_of(config_, qo_len) != Pipeline::decode) return 0;
  return std::max(0, batch.kv_len(request) - qo_len);
}

// Of a request and the next one.
std::int64_t PrefixFinder::common_keys(const CheckedBatch& batch, int request) const {
  if (request + 1 >= batch.num_requests) return 0;
  const std::int64_t most = std::min(shareable_keys(batch, request), shareable_keys(batch, request + 1));
  const std::int32_t* const ids = batch.batch.kv_indices.data();
  const std::int64_t pages = equal_entries(ids + batch.kv_offset(request), ids + batch.kv_offset(request + 1),
                                           most / config_.page_size);
  return pages * config_.page_size / step_ * step_;
}

// The interval tree of what neighbours have in common. A node is closed once all below it are.
void PrefixFinder::grow_tree(const CheckedBatch& batch) {
  nodes_.clear();
  open_.clear();
  open(0, 0);
  for (int r = 0; r < batch.num_requests; ++r) {
    const auto keys = static_cast<std::int32_t>(common_keys(batch, r));
    std::int32_t begin = r;
    while (nodes_[static_cast<std::size_t>(open_.back())].keys > keys) {
      const std::int32_t closed = open_.back();
      close(batch, r + 1);
      begin = nodes_[static_cast<std::size_t>(closed)].begin;
      if (nodes_[static_cast<std::size_t>(open_.back())].keys < keys) open(begin, keys);
      adopt(open_.back(), closed);
    }
    if (nodes_[static_cast<std::size_t>(open_.back())].keys < keys) open(begin, keys);
  }
}

void PrefixFinder::open(std::int32_t begin, std::int32_t keys) {
  open_.push_back(static_cast<std::int32_t>(nodes_.size()));
  nodes_.push_back({.begin = begin, .keys = keys, .first_child = -1, .last_child = -1, .next = -1});
}

void PrefixFinder::adopt(std::int32_t parent, std::int32_t child) {
  Node& node = nodes_[static_cast<std::size_t>(parent)];
  (node.first_child < 0 ? node.first_child : nodes_[static_cast<std::size_t>(node.last_child)].next) = child;
  node.last_child = child;
}

// By the cost models, spread over all CTAs of a pipeline: what each key saves that the group need not read
// again, and what the group costs beside its keys.
void PrefixFinder::close(const CheckedBatch& batch, std::int32_t end) {
  Node& node = nodes_[static_cast<std::size_t>(open_.back())];
  open_.pop_back();
  node.end = end;
  const PipelineShape &decode = config_.of(Pipeline::decode), &append = config_.of(Pipeline::append);
  const std::int64_t rows = std::int64_t{batch.qo_begin(end) - batch.qo_begin(node.begin)} * config_.group;
  const auto tiles = static_cast<double>((rows + append.tile_rows - 1) / append.tile_rows);
  const double requests = end - node.begin, heads = config_.num_kv_heads;
  const double of_decode = requests / (decode.num_ctas * decode.heads_abreast);
  const double apart = decode.cost.per_tile / decode.tile_kv * of_decode;
  const double together = append.cost.per_tile / append.tile_kv * tiles / append.num_ctas;
  node.saved_per_key = (apart - together) * heads;
  node.price = heads * (append.cost.per_item * tiles / append.num_ctas +
                        decode.cost.per_partial * of_decode);
  for (int levels = 0; levels < kMaxPrefixLevels; ++levels)
    node.below[levels] = best_of_children(node, node.keys, levels, 0);
}

// --- the choice -----------------------------------------------------------------------------------

// By keeping a node, and the best below it, behind `front` keys that are shared already.
double PrefixFinder::saved_by(const Node& node, std::int32_t front, int levels) const {
  return (node.keys - front) * node.saved_per_key - node.price + node.below[levels - 1];
}

// The most that a node and those below it can save with so many levels left.
double PrefixFinder::best(const Node& node, std::int32_t front, int levels, int dropped) const {
  return std::max(saved_by(node, front, levels), best_of_children(node, front, levels, dropped + 1));
}

double PrefixFinder::best_of_children(const Node& node, std::int32_t front, int levels, int dropped) const {
  double sum = 0;
  if (levels == 0 || dropped > kMostDropped) return sum;
  for (std::int32_t i = node.first_child; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next)
    sum += best(nodes_[static_cast<std::size_t>(i)], front, levels, dropped);
  return sum;
}

// What best_of_children() adds up.
void PrefixFinder::choose(const Node& parent, std::int32_t front, int levels, int dropped) {
  if (levels == 0 || dropped > kMostDropped) return;
  for (std::int32_t i = parent.first_child; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next) {
    const Node& node = nodes_[static_cast<std::size_t>(i)];
    if (saved_by(node, front, levels) > best_of_children(node, front, levels, dropped + 1)) {
      found_.push_back({node.begin, node.end, front, node.keys, kMaxPrefixLevels - levels});
      choose(node, node.keys, levels - 1, 0);
    } else {
      choose(node, front, levels, dropped + 1);
    }
  }
}

}  // namespace heddle
