// q, k and v as the copy engine of an sm_90a GPU sees them, for the wgmma kernel.
#pragma once

#include "engine/engine.h"

namespace heddle {

// Boxes of `tile` over checked tensors, whose strides `p` holds. Not usable where the engine cannot take
// them; the kernel gathers rows then.
TensorMaps tensor_maps(const AttentionConfig& config, const TileConfig& tile, const Tensors& tensors, const AttentionParams& p);

// The same over a workspace's transformed keys, [rows, num_kv_heads, head_dim]: a box is a whole tile's. False: not usable.
bool encode_transformed_map(TensorMaps::Map& map, const AttentionConfig& config, const TileConfig& tile,
                            const void* keys, std::int64_t rows);

}  // namespace heddle
