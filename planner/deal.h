// Streams dealt to CTAs as a whole, each to the one with least to do, in place of shares cut from a line (split.h).
//
// Requests of many query tiles are dealt head by head, and what is left at the end is cut into even shares. Each query
// tile reads all keys in front of it, and whether L2 still has them depends on who else is at work: shares of one line
// put every CTA somewhere else, dealt streams keep all of them at neighbouring tiles of one head or two. (H200: 2,048
// rows over 16k keys, 67 MB, read 1.37 GB from memory as shares, and took 8 % longer.)
//
// A batch of few streams is dealt to the end, the longest first, where that is more even than cuts, which have a price.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/split.h"

namespace heddle {

// Query tiles of a request that is dealt head by head. The others' keys are few, and their streams cheap to split and
// copy together.
inline constexpr std::ptrdiff_t kManyTiles = 16;
// Streams a CTA of a batch that may be dealt to the end. With more of them cuts are a small part.
inline constexpr std::int64_t kFewStreams = 16;

// Serves one plan after the other; allocates in its constructor only.
class Dealer {
 public:
  // For plans of so many streams' runs, items and CTAs at most.
  Dealer(std::int64_t max_runs, std::int64_t max_items, int num_ctas);

  // The line has no loads yet; `most_tiles`: the query tiles of its largest request.
  SplitResult split(const Line& line, int num_heads, std::int32_t most_tiles, const SplitOutput& out);

 private:
  struct Hand {
    const StreamRun* run;
    std::int32_t head, cta;
  };

  SplitResult split_by_head(const Line& line, int num_heads, const SplitOutput& out);
  void deal_by_head(const Line& line, std::int64_t budget);
  bool has_room(const Line& line, std::int64_t budget, const StreamRun& run) const;
  void leave(const StreamRun& run, int head_begin, int head_end);

  void deal_all(const Line& line);
  SplitResult result_of_hands(const Line& line) const;

  void give(const Line& line, const StreamRun& run, int head);
  void write_in_front(const Line& line, const SplitOutput& out);

  // A tournament of CTAs, won at node 1 by the one with least to do; node i stands over nodes 2 i and 2 i + 1.
  struct Node {
    std::int64_t load;
    std::int32_t cta;
  };
  std::vector<Node> nodes_;
  void begin_tournament(int num_ctas);
  void add_to_least(std::int64_t cost);
  std::span<const Node> loads(int num_ctas) const {
    return std::span(nodes_).subspan(nodes_.size() / 2, static_cast<std::size_t>(num_ctas));
  }

  std::vector<std::int32_t> order_;  // of the runs, the longest first
  std::vector<Hand> hands_;
  std::vector<StreamRun> rest_;
  std::vector<std::int64_t> loads_;
  std::vector<std::int32_t> counts_;  // of the hands of each CTA; then where its next one is written
  std::size_t num_hands_ = 0, num_rest_ = 0;
};

}  // namespace heddle
