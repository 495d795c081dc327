// Decode's split: the contiguous one (split.h), with the heads of a request in step where that is as even.
//
// The rows of a key's heads lie side by side in memory, or its page's blocks do. Memory gives them faster when they are
// read at about the same time, so neighbouring CTAs, `lanes` of them, take the same shares of the same streams, each of
// another head. Their line is that of one lane: the heads lane, lane + lanes, ... of all requests, cut into as many shares
// as there are such groups of CTAs. (H200, 2026-12-01, read 4.57 TB/s, us, shares of all heads in one row and these: 64
// requests of 4k 250 and 248, 128 of 2k 253 and 249, 256 of 1k 255 and 251, one of 128k beside 255 of 1k 377 and 371, zipf
// 391 and 386; 32 of 4k and 16 of 8k, a stream or less a CTA, and 1,024 of 256 the same.)
//
// An item has one head then, so only batches of few streams are read so.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/split.h"

namespace heddle {

// Streams a CTA at most. With more of them a plan would be as many records; with less than one nothing is gained.
inline constexpr std::int64_t kMostInStep = 8;

// How many heads are read in step in a batch of so many streams; 1: all of them lie in one row.
int heads_in_step(std::int64_t streams, int num_heads, int num_ctas);

// Serves one plan after the other; allocates in its constructor only.
class InStepSplit {
 public:
  // For plans of so many streams' runs at most.
  InStepSplit(std::int64_t max_runs, int num_ctas);

  // Of runs that have all heads of the model, one query tile each.
  SplitResult split(const Line& line, int num_heads, const SplitOutput& out);

 private:
  SplitResult split_lane(const Line& line, int lanes, int num_heads, const SplitOutput& out);
  void write_lanes(int num_ctas, int lanes, SplitResult& of_lane, const SplitOutput& out) const;

  std::vector<StreamRun> runs_;  // those of one lane, and what became of them
  std::vector<WorkItem> items_;
  std::vector<std::int32_t> group_begin_;
};

}  // namespace heddle
