// Judges one run()'s tensors against the Attention and the plan, and turns them into kernel arguments.
#pragma once

#include "engine/state.h"

namespace heddle::detail {

// Pointers, strides and shapes of q, k, v, o, lse and kv_indices, each checked. The plan, partial and
// tile fields are left to the caller.
AttentionParams checked_params(const AttentionState& attention, const WorkspaceState& workspace,
                               const Tensors& tensors);

// Debug: copies the used part of kv_indices back and refuses ids outside the pool.
void check_page_ids(const AttentionState& attention, const WorkspaceState& workspace, const Tensors& tensors,
                    Stream stream);

}  // namespace heddle::detail
