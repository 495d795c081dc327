// Random attention problems, over all that a launch set serves: what `heddle verify --random` draws, and the tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/tiles.h"
#include "tools/random.h"

namespace heddle::tools {

// Constants settled. Of a variant, or of any of the engine's.
AttentionConfig random_config(Random& random, const Variant& variant);
AttentionConfig random_config(Random& random, const Engine& engine);
// Multiples of 16 and of 8; now and then those of v and o differ (else vo is 0).
HeadDims random_head_dims(Random& random);

// Parts of a composition: two to four of `names` in any order, but qk_norm, which has to stand first. They may still
// not stand together. (Inline: a build step draws without the engine.)
inline std::vector<std::string> random_parts(Random& random, std::vector<std::string> names) {
  for (std::size_t i = names.size() - 1; i > 0; --i) std::swap(names[i], names[std::size_t(random.below(int(i) + 1))]);
  names.resize(std::size_t(2 + random.below(3)));
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == "qk_norm"; });
  return names;
}

// Lengths on, in and beside tiles, with run-time params that make a difference there.
struct RandomBatch {
  KvLayout layout = KvLayout::NHD;
  ParamValues params;
  std::vector<std::int32_t> qo_lens, kv_lens;
};
RandomBatch random_batch(Random& random, const AttentionConfig& config, const Variant& variant);

// Of the params that a run gives (or, `constant`, that are fixed with the Attention).
ParamValues random_params(Random& random, const Variant& variant, bool constant);

}  // namespace heddle::tools
