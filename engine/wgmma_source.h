// Renders the warpgroup products (wgmma) of one unit: PTX wants every register of a product named in
// the instruction, so a text for exactly its shapes is shorter than templates for all.
#pragma once

#include <string>

#include "engine/types.h"

namespace heddle {

// Members of a unit's Spec, for tiles of `tile_kv` keys and `columns` columns of V:
//   multiply_keys(s, q, k, accumulate)    S (+)= Q K^T over 16 columns, K in shared memory, Q there or in registers
//   multiply_values(o, weights, v)        O += P V over 16 keys, P in registers
std::string render_wgmma(DType dtype, int tile_kv, int columns);

}  // namespace heddle
