// One hook of a spec: its code, and what a transform of q, k or v asks of its row.
#pragma once

#include "variants/spec_fields.h"
#include "variants/spec_reader.h"

namespace heddle {

// `own` is the spec so far; its params and tensors are what the hook may name.
HookCode read_hook(const SpecFields& fields, Hook hook, const SpecNode& node, const Spec& own);

}  // namespace heddle
