// Shared prefixes: neighbouring requests whose page tables begin with the same pages.
//
// Their rows see those keys all alike, so the keys need to be read once for all of them instead of once
// each: as one request of the append pipeline, with all their query rows, whose states then join those
// of what each request has for itself (RadixAttention, arXiv:2312.07104; Hydragen, arXiv:2402.05099;
// FlashInfer's cascade). Prefixes nest, as in a radix tree: a system prompt for all, below it a
// document for some, below that the samples of one answer. Each is a level of its own over the keys
// behind those of the level around it, up to kMaxPrefixLevels of them.
//
// Neighbours alone are compared: what requests r and r + 1 have in common, for every r, makes the tree. A
// group of it is worth sharing where that saves more than its items and states cost, by the cost models;
// where the tree is deeper than there are levels, those are chosen that save most together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/check_batch.h"
#include "planner/plan.h"

namespace heddle {

struct SharedPrefix {
  std::int32_t begin = 0, end = 0;          // requests
  std::int32_t key_begin = 0, key_end = 0;  // whole KV tiles of the append pipeline, and whole pages
  std::int32_t level = 0;                   // groups around it; their keys are those in front of its own
  std::int32_t keys() const { return key_end - key_begin; }
};

// What stands for a request in the items of a prefix (templates/abi.h).
constexpr std::int32_t prefix_number(std::int32_t first_request, std::int32_t state) {
  return -1 - (first_request * kMaxPrefixStates + state);
}
// The request of an item, or the first that shares the prefix.
constexpr std::int32_t first_request(const WorkItem& item) {
  return item.request < 0 ? (-1 - item.request) / kMaxPrefixStates : item.request;
}

// Keys that prefixes are whole multiples of: whole KV tiles of append that are whole pages.
std::int32_t prefix_step(const PlanConfig& config);

// Finds groups among the requests that decode runs. Allocates in its constructor only.
class PrefixFinder {
 public:
  PrefixFinder(const PlanConfig& config, const Maxima& maxima);

  // By their first request, a group in front of those inside it. Exact: the page ids of a group are equal
  // one by one. None where a window or sinks make rows see different keys. Requires: batch.kv_indices
  // holds what the batch reaches. Valid until the next call.
  std::span<const SharedPrefix> find(const MaskBounds& mask, const CheckedBatch& batch);

 private:
  // Requests that have at least `keys` in common, as many as there are. Children have more.
  struct Node {
    std::int32_t begin, end, keys;
    std::int32_t first_child, last_child, next;
    double saved_per_key, price;
    double below[kMaxPrefixLevels];  // most that its children save where it is kept and so many levels are left
  };

  std::int64_t shareable_keys(const CheckedBatch& batch, int request) const;
  std::int64_t common_keys(const CheckedBatch& batch, int request) const;
  void grow_tree(const CheckedBatch& batch);
  void open(std::int32_t begin, std::int32_t keys);
  void adopt(std::int32_t parent, std::int32_t child);
  void close(const CheckedBatch& batch, std::int32_t end);

  double saved_by(const Node& node, std::int32_t front, int levels) const;
  double best(const Node& node, std::int32_t front, int levels, int dropped) const;
  double best_of_children(const Node& node, std::int32_t front, int levels, int dropped) const;
  void choose(const Node& parent, std::int32_t front, int levels, int dropped);
  void keep_what_has_room(const CheckedBatch& batch);

  PlanConfig config_;
  std::int64_t most_rows_;
  std::int64_t step_;
  std::vector<Node> nodes_;         // the first one: all requests, nothing in common
  std::vector<std::int32_t> open_;  // from the first one down, while the tree grows
  std::vector<SharedPrefix> found_;
};

}  // namespace heddle
