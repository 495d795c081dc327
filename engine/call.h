// What the calls of an Attention on a Workspace begin with: handles, params and streams, each checked.
#pragma once

#include "engine/state.h"

namespace heddle::detail {

// Refuse empty handles, and a Workspace of another Attention.
const AttentionState& checked(const std::shared_ptr<AttentionState>& attention);
WorkspaceState& checked(const std::shared_ptr<WorkspaceState>& ws, const AttentionState& attention);

// Refuses a stream where there is no GPU to have any. `call` is for the sentence.
void check_stream(const EngineState& engine, Stream stream, const char* call);

// Every param's value, the spec's defaults with `params` put in, as kernels take them. Compared with
// those of the last call, and settled again only where they differ.
SettledParams& settle(const AttentionState& a, const ParamValues& params, SettledParams& settled);
// Of run() and append_kv(): there must be a plan, made for the same mask. `call` is for the sentence.
SettledParams& settle_as_planned(const AttentionState& a, WorkspaceState& ws, const ParamValues& params, const char* call);

// Puts `stream` behind whatever the workspace was last used for.
void take_over(WorkspaceState& ws, Stream stream);
// The same before a launch: a capture runs nothing now, and cannot wait for what was put on a stream
// outside of it. Makes the device current.
void follow(const AttentionState& a, WorkspaceState& ws, Stream stream);

// What the words in the shapes of the variant's tensors stand for; run() does without where it has none.
ShapeWords shape_words(const AttentionState& a, const WorkspaceState& ws);

}  // namespace heddle::detail
