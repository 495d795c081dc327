// The batch-invariant split: streams are cut by the rule of chunks.h, and balance is found by
// laying the chunks of all of them in a row and ending each CTA's share between two.
//
// A CTA runs its pieces first, then its whole items, then the last pieces, which join. So it has
// published all that others take before it waits itself, and since the pieces of a stream stand in
// CTAs of rising number it waits for CTAs of lower number only, or for nothing. CTAs start in the
// order of their numbers: whoever is waited for has started, and nothing stands in front of its
// pieces that waits. So no CTA waits for ever, whatever else keeps the others from starting.
//
// Of its pieces those go first which a later CTA takes, and of its joins that goes last which takes
// an earlier CTA's. The other way round (before 2026-12-01) a join stood up to 142 us ahead of what
// it takes, and uniform:64:256:16384 took an H200 464 us of which most CTAs had worked for 418.
//
// The busiest of 264 CTAs takes this multiple of the default's time (by cost_table.h, not from a
// GPU; 8 kv heads of head_dim 128):
//
//   64x4096 1.05  128x2048 1.05  256x1024 1.02  16x8192 1.04  1x131072 1.03  10000x300 1.00
//   1x131072+255x1024 1.03  zipf:256:65536 1.07  uniform:64:256:16384 1.08  1x8192 4.7  1x1024 9.0
//
// A single short request stands out, since its rule cannot know that it is alone. (The model
// prices a CTA beside its fellows; alone on the memory one is faster than that.) Partial states
// are bounded by the keys: for 256 requests, 256 query rows, 1M keys and 8 kv heads of head_dim
// 128 they take 49 MB for decode and 135 MB for append, where the default's take 2 and 9 MB.
#pragma once

#include <span>

#include "planner/split.h"

namespace heddle {

// A place in the row of chunks. The units of a run are the chunks of its heads, head by head.
struct ChunkPlace {
  std::int32_t run = 0;
  std::int32_t unit = 0;
  std::int32_t first_slot = 0;  // of the run
};

// `borders` is room for num_ctas + 1 places.
SplitResult split_by_chunks(std::span<const StreamRun> runs, const PlanConfig& config,
                            Pipeline pipeline, const SplitOutput& out,
                            std::span<ChunkPlace> borders);

}  // namespace heddle
