// What the parts of the extension share: the engine's handles as Python holds them.
#pragma once

#include <atomic>
#include <cstdint>

#include <nanobind/nanobind.h>

#include "engine/engine.h"
#include "engine/merge_states.h"
#include "tools/python/array.h"

namespace heddle::python {

struct PyEngine {
  Engine engine;
  Place place;
};

struct PyAttention {
  Attention attention;
  Place place;
};

struct PyMergeStates {
  MergeStates merge;
  Place place;
};

struct PyWorkspace {
  Workspace workspace;
  Place place;
  std::int64_t kv_table_stride = 0;  // of the last plan: a dense table's, or 0
  std::atomic_flag is_busy = {};     // plan() and run() release the GIL
};

void bind_variant(nanobind::module_& m);    // Variant
void bind_engine(nanobind::module_& m);     // Engine, AttentionConfig and the records they return
void bind_attention(nanobind::module_& m);  // Attention, Workspace, PlanSummary
void bind_merge(nanobind::module_& m);      // MergeStates
void bind_cache(nanobind::module_& m);      // the functions under heddle.cache

PyMergeStates make_merge_states(PyEngine& engine, int head_dim, nanobind::handle state_dtype,
                                nanobind::handle o_dtype);

// A dict, JSON text (its first character is a brace), a path or a Variant. `engine` resolves what
// the spec composes.
Variant read_variant(nanobind::handle spec, const VariantRegistry& known);

}  // namespace heddle::python
