// The shared memory of decode, and how the states of a team's warps meet there at the end of a (work item, kv head): each
// warp leaves sums, maximum and sum of weights of its keys, and threads read a row's of all warps.
#pragma once

#include "templates/decode_copy.cuh"
#include "templates/decode_rows.cuh"
#include "templates/merge.cuh"

namespace heddle {

template <class Spec>
struct DecodeSmem {
  static constexpr int kWarps = Spec::kTile.warps;
  static constexpr int kRows = Spec::kTile.rows;
  static constexpr int kTeams = Team<Spec>::kTeams;
  using QkTile = SmemTile<Spec::kHeadDim>;
  using VTile = SmemTile<Spec::kHeadDimVo>;
  static constexpr int kKBytes = kWarpKeysOf<Spec> * QkTile::kRowBytes;
  static constexpr int kVBytes = kWarpKeysOf<Spec> * VTile::kRowBytes;
  // Between tiles one stage of a warp is free; at the end of a head it holds up to 16 x D sums, f32, which
  // only rows of V that are wider than those of K make it larger for.
  static constexpr int kSumBytes = kRows * VTile::kColumns * 4;
  struct WarpStage {
    alignas(128) uint8_t k[kKBytes];
    alignas(128) uint8_t v[max_of(kVBytes, kSumBytes - kKBytes)];
  };
  WarpStage stage[Spec::kTile.stages][kWarps];
  alignas(128) uint8_t q[Spec::kTile.stages][kTeams][kRows * QkTile::kRowBytes];  // of as many heads as are under way
  float max2[kWarps][kRows];
  float sum[kWarps][kRows];
};

// At a stage that is free in every warp of the team.
template <class Spec, class Hooks>
class WarpStates {
  using Smem = DecodeSmem<Spec>;
  using VTile = typename Smem::VTile;
  using Rows = DecodeRows<Spec, Smem::kRows>;

 public:
  HEDDLE_DEVICE WarpStates(Smem& smem, int stage) : smem_(smem), stage_(stage) {}

  // This warp's.
  HEDDLE_DEVICE void share(const Rows& rows, const RowState (&state)[Rows::kHalves], int num_rows) const {
    float* sums = sums_of(warp_index());
    rows.store(num_rows, [&](int row, int column) { return sums + sum_index(row, column); });
#pragma unroll
    for (int half = 0; half < Rows::kHalves; ++half) {
      const int row = lane_index() / 4 + half * 8;
      const float sum = quad_sum(state[half].sum);
      if (row >= num_rows || lane_index() % 4 != 0) continue;
      smem_.max2[warp_index()][row] = state[half].max2;
      smem_.sum[warp_index()][row] = sum;
    }
  }

  // All of the team's warps' of one row, four columns, in warp order.
  HEDDLE_DEVICE JoinedState<Hooks> sum(int row, int column) const {
    const int begin = Team<Spec>::first_warp(), end = begin + Team<Spec>::kWarps;
    JoinedState<Hooks> state;
    if constexpr (Hooks::use_softmax)
      for (int w = begin; w < end; ++w) state.max2 = fmaxf(state.max2, smem_.max2[w][row]);
    const float base = state.max2 == negative_infinity() ? 0.0f : state.max2;
    for (int w = begin; w < end; ++w) {
      const float factor = Hooks::use_softmax ? exp2_approx(smem_.max2[w][row] - base) : 1.0f;
      if constexpr (Hooks::use_softmax || kCountsKeys<Hooks>) state.sum += smem_.sum[w][row] * factor;
      state.o = state.o + *reinterpret_cast<const float4*>(sums_of(w) + sum_index(row, column)) * factor;
    }
    if constexpr (!Hooks::use_softmax && !kCountsKeys<Hooks>) state.sum = 1.0f;
    return state;
  }

 private:
  // Moved so that rows which are written together hit other banks.
  static HEDDLE_DEVICE int sum_index(int row, int column) {
    const int key = VTile::kColumns % 32 == 0 ? (row ^ row >> 1) & 3 : row & 1;
    return row * VTile::kColumns + (column ^ key * 8);
  }
  HEDDLE_DEVICE float* sums_of(int warp) const { return reinterpret_cast<float*>(smem_.stage[stage_][warp].k); }

  Smem& smem_;
  const int stage_;
};

}  // namespace heddle
