// The teams of a decode CTA: warps that read the keys of one kv head, each of them its share of every KV tile.
//
// Teams have the same work item and neighbouring kv heads, whose rows lie side by side in memory, and nothing else in
// common: each has its q, its states and its barrier.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

template <class Spec>
struct Team {
  static constexpr int kTeams = Spec::kTile.heads_abreast;
  static constexpr int kWarps = Spec::kTile.warps / kTeams;
  static constexpr int kThreads = kWarps * kWarpSize;
  static_assert(kWarps * kTeams == Spec::kTile.warps, "every team has as many warps");

  static HEDDLE_DEVICE int index() { return kTeams == 1 ? 0 : warp_index() / kWarps; }
  static HEDDLE_DEVICE int first_warp() { return index() * kWarps; }
  static HEDDLE_DEVICE int warp() { return kTeams == 1 ? warp_index() : warp_index() % kWarps; }
  static HEDDLE_DEVICE int thread() { return static_cast<int>(threadIdx.x) - first_warp() * kWarpSize; }

  static HEDDLE_DEVICE void sync() {
    if constexpr (kTeams == 1)
      __syncthreads();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(index() + 1), "n"(kThreads) : "memory");
  }
};

}  // namespace heddle
