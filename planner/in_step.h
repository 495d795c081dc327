// Decode's split: the contiguous one (split.h), with the heads of a request in step where that is as even.
//
// The rows of a key's heads lie side by side in memory, or its page's blocks do. Memory gives them faster when they are
// read at about the same time, so neighbouring CTAs, `lanes` of them, take the same shares of the same streams, each of
// another head. Their line is that of one lane: the heads lane, lane + lanes, ... of all requests, cut into as many shares
// as there are such groups of CTAs. (H200, 2026-12-01, read 4.68 TB/s, us, shares of all heads in one row and these: 64
// requests of 4k 244.5 and 241.8, 128 of 2k 247.9 and 244.7, 256 of 1k 249.4 and 247.5, one of 128k beside 255 of 1k 367.5
// and 363.4, zipf 381 and 379, uniform 408 and 405, 32 kv heads 944 and 937; 32 of 4k and 16 of 8k, a stream or less a CTA,
// and 1,024 of 256 the same. Rows of 96 columns took 201.9 and 203.5, of 64 128.1 and 128.7; since two heads of such rows
// are read abreast, as long with those pairs in step as without.)
//
// An item has one head then, so only batches of few streams are read so.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/split.h"

namespace heddle {

// Streams a CTA at most. With more of them a plan would be as many records; with less than one nothing is gained.
inline constexpr std::int64_t kMostInStep = 8;

// Columns of K and V's rows together, at least.
inline constexpr int kLeastWidthInStep = 2 * 128;

// How many heads decode reads in step in a batch of so many streams; 1: all of them lie in one row.
int heads_in_step(const PlanConfig& config, std::int64_t streams);

// Serves one plan after the other; allocates in its constructor only.
class InStepSplit {
 public:
  // For plans of so many streams' runs at most.
  InStepSplit(const PlanConfig& config, std::int64_t max_runs);

  // Of runs that have all heads of the model, one query tile each.
  SplitResult split(const Line& line, const PlanConfig& config, const SplitOutput& out);

 private:
  SplitResult split_lane(const Line& line, int lanes, int num_heads, const SplitOutput& out);
  void write_lanes(int num_ctas, int lanes, SplitResult& of_lane, const SplitOutput& out) const;

  std::vector<StreamRun> runs_;  // those of one lane, and what became of them
  std::vector<WorkItem> items_;
  std::vector<std::int32_t> group_begin_;
};

}  // namespace heddle
