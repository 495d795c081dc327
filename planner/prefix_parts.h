// The parts that shared prefixes are read in.
//
// A long prefix of few requests has few streams (query tile, kv head). Cut among many CTAs each of them would be joined
// in one CTA, while the others have nothing to do and decode waits: 8 pieces of 128 rows took 20 to 36 us on an H200,
// where all the work before took 53. So a prefix is cut by its keys into parts that leave a state each, and decode,
// which has threads for every row, joins those.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/prefixes.h"

namespace heddle {

struct PrefixPart {
  std::int32_t begin = 0, end = 0;          // requests
  std::int32_t key_begin = 0, key_end = 0;  // whole KV tiles of the append pipeline, and whole pages
  std::int32_t state = 0;                   // of its rows' states: parts in front of it in their keys
  std::int32_t keys() const { return key_end - key_begin; }
};

// Allocates in its constructor only.
class PrefixCutter {
 public:
  PrefixCutter(const PlanConfig& config, const Maxima& maxima);

  // Parts of all prefixes, as they stand, the parts of one in the order of their keys: about as many as make its streams
  // as long as a CTA's share of all. No row has more states than a plan of these rows has room for. Valid until the
  // next call.
  std::span<const PrefixPart> cut(std::span<const SharedPrefix> prefixes, const CheckedBatch& batch);

 private:
  std::int64_t streams(const SharedPrefix& prefix, const CheckedBatch& batch) const;

  PlanConfig config_;
  std::int64_t most_states_;
  std::int32_t step_;   // keys: whole KV tiles that are whole pages
  std::int64_t least_;  // steps of a part, so that it is worth what it costs
  std::vector<PrefixPart> parts_;
};

}  // namespace heddle
