// From a spec to a variant: its parts in order, with one list of params and tensors.
//
// - The parts are the variants that "compose" names, in its order, then the spec's own hooks,
//   params and mask, if it has any, as one more. A part that is itself a composition brings its
//   components (flat), so how deep a composition is nested never shows.
// - Transforms chain left to right; logits masks are ANDed; each part's declared bounds are kept.
// - A param or tensor keeps its name where no other component has one of that name; where two
//   clash, every one of them becomes "component.name".
// - use_softmax: a part without "use_softmax" and without initial_state has no opinion. Parts with
//   one must agree; initial_state is a term of the softmax, so it counts as true. None: true.
// - Sinks escape their own part's window only. So a part with a sink beside another part with a
//   window or a sink would not be one window with sinks, and is refused.
#pragma once

#include <span>

#include "variants/spec_reader.h"
#include "variants/variant.h"

namespace heddle {

inline constexpr std::size_t kMaxComponents = 16;

Variant compose(Spec spec, const VariantRegistry& known);

// Reads the texts and adds a variant for each; one may compose another whatever their order.
// Throws where a composition names what is nowhere, or itself in a circle.
void add_specs(std::span<const EmbeddedFile> files, VariantRegistry& registry);

}  // namespace heddle
