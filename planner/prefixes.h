// Shared prefixes: neighbouring requests whose page tables begin with the same pages.
//
// Their rows see those keys all alike, so the keys need to be read once for all of them instead of once
// each: as one request of the append pipeline, with all their query rows, whose states then join those
// of what each request has for itself (RadixAttention, arXiv:2312.07104; Hydragen, arXiv:2402.05099;
// FlashInfer's cascade). A group is worth that only if it saves more than the second kernel costs.
#pragma once

#include <cstdint>
#include <span>

#include "planner/check_batch.h"
#include "planner/plan.h"

namespace heddle {

struct SharedPrefix {
  std::int32_t begin = 0, end = 0;  // requests
  std::int32_t keys = 0;            // whole KV tiles of the append pipeline, and whole pages
};

// What stands for a request in the items of a prefix (templates/abi.h).
constexpr std::int32_t prefix_number(std::int32_t first_request) { return -1 - first_request; }
// The request of an item, or the first that shares the prefix.
constexpr std::int32_t first_request(const WorkItem& item) {
  return item.request < 0 ? prefix_number(item.request) : item.request;
}

// Most groups that a batch can have: each has two requests or more.
constexpr std::size_t most_prefixes(std::int64_t max_requests) { return static_cast<std::size_t>(max_requests / 2); }

// Finds groups among the requests that decode runs, in order and apart, and writes them to `out` (room for
// most_prefixes). Exact: a group's page ids are equal one by one. None where a window or sinks make
// rows see different keys. Requires: batch.kv_indices holds what the batch reaches.
std::size_t find_prefixes(const PlanConfig& config, const MaskBounds& mask, const CheckedBatch& batch,
                          std::span<SharedPrefix> out);

}  // namespace heddle
