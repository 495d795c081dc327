// q, k and v as the copy engine of an sm_90a GPU sees them, for the wgmma kernel.
#pragma once

#include "engine/engine.h"

namespace heddle {

// Boxes of `tile` over checked tensors, whose strides `p` holds, and over the workspace's transformed keys. Not usable
// where the engine cannot take them; the kernel gathers rows then.
TensorMaps tensor_maps(const AttentionConfig& config, const TileConfig& tile, const Tensors& tensors,
                       const AttentionParams& p, std::int64_t max_transformed_keys);

}  // namespace heddle
