// Streams of requests with many query tiles, dealt to CTAs head by head; the even split (split.h) cuts what is left.
//
// Each query tile reads all keys in front of it, and whether L2 still has them depends on who else is at work. Shares
// cut from one line put every CTA somewhere else. Dealt to the CTA with least to do, one after the other, streams keep
// all CTAs at neighbouring query tiles of one head or two, whose keys L2 holds. (H200: 2,048 rows over 16k keys, 67 MB,
// read 1.37 GB from memory as shares, and took 8 % longer.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/split.h"

namespace heddle {

// Query tiles of a request that is dealt. The others' keys are few, and their streams cheap to split and copy together.
inline constexpr std::ptrdiff_t kManyTiles = 16;

// Serves one plan after the other; allocates in its constructor only.
class Dealer {
 public:
  // For plans of so many items and CTAs at most.
  Dealer(std::int64_t max_items, int num_ctas);

  // The line has no loads yet. Where CTAs have less than a stream and a half each, or no request has kManyTiles,
  // nothing is dealt.
  SplitResult split(const Line& line, int num_heads, const SplitOutput& out);

 private:
  struct Hand {
    const StreamRun* run;
    std::int32_t head, cta;
  };

  void deal(const Line& line, std::int64_t budget);
  bool give(const Line& line, std::int64_t budget, const StreamRun& run, int head);
  void leave(const StreamRun& run, int head_begin, int head_end);
  void write_in_front(const Line& line, const SplitOutput& out);

  // A tournament of CTAs, won at node 1 by the one with least to do; node i stands over nodes 2 i and 2 i + 1.
  struct Node {
    std::int64_t load;
    std::int32_t cta;
  };
  std::vector<Node> nodes_;
  void begin_tournament(int num_ctas);
  void add_to_least(std::int64_t cost);

  std::vector<Hand> hands_;
  std::vector<StreamRun> rest_;
  std::vector<std::int64_t> loads_;
  std::vector<std::int32_t> counts_;  // of the hands of each CTA; then where its next one is written
  std::size_t num_hands_ = 0, num_rest_ = 0;
};

}  // namespace heddle
