// Judges one run()'s tensors against the Attention and the plan, and turns them into kernel arguments.
#pragma once

#include "engine/state.h"

namespace heddle::detail {

// Pointers, strides and shapes of q, k, v, o, lse and kv_indices, each checked. The plan, partial and
// tile fields are left to the caller.
AttentionParams checked_params(const AttentionState& attention, const WorkspaceState& workspace,
                               const Tensors& tensors);

// Pointers, strides and shapes of one append_kv(), each checked. The plan is left to the caller.
AppendKvParams checked_params(const AttentionState& attention, const WorkspaceState& workspace,
                              const AppendTensors& tensors);

// Refuses a plan in which a request has more query rows than keys: the first would have no position.
void check_new_rows(std::span<const std::byte> plan);

// Rows of 16-bit or f32 elements that are copied 16 bytes at a time: data, dtype, rank, sizes, strides.
void check_rows(const char* name, const Tensor& tensor, DType dtype, int rank);
// What is read may have rows that share memory (heads expanded with stride 0); what is written may not.
void check_written(const char* name, const Tensor& tensor, const char* why);
void check_lse(const char* name, const Tensor& tensor);
void check_size(const char* name, const char* axis, std::int64_t found, std::int64_t wanted, bool at_least = false);

// Debug: copies the used part of kv_indices back and refuses ids outside a pool of `num_pages`.
void check_page_ids(const AttentionState& attention, const WorkspaceState& workspace, const std::int32_t* kv_indices,
                    std::int64_t num_pages, Stream stream);

}  // namespace heddle::detail
