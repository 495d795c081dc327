// Random attention problems, over all that a launch set serves: what `heddle verify --random` draws, and the tests.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernel_source.h"
#include "tools/random.h"

namespace heddle::tools {

// Constants settled. Of a variant, or of any of the engine's.
AttentionConfig random_config(Random& random, const Variant& variant);
AttentionConfig random_config(Random& random, const Engine& engine);
// Multiples of 16 and of 8; now and then those of v and o differ (else vo is 0).
HeadDims random_head_dims(Random& random);

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
