// Tiles of append whose keys are all so far from all rows that hooks with a max_distance take them for equally far
// (Hooks::has_far_form). What such hooks make of a logit is then affine, and the same for a whole row: it is asked once for
// all tiles in front of the rows, or behind them.
#pragma once

#include "templates/append_sm90_smem.cuh"
#include "templates/softmax.cuh"

namespace heddle {

template <class Spec, class Hooks>
class FarTiles {
  static constexpr int kTileKv = Spec::kTile.kv;

 public:
  using Form = FarForm<Hooks>;

  HEDDLE_DEVICE FarTiles(const Hooks& hooks, const AppendStream& stream, float sm_scale)
      : hooks_(hooks), stream_(stream), sm_scale_(sm_scale) {}

  // -1: in front of all rows, 1: behind them, 0: neither as a whole.
  HEDDLE_DEVICE int side(int t) const {
    if (t < stream_.full_begin || t >= stream_.full_end) return 0;
    const int start = tile_start<kTileKv>(stream_.item, t), reach = hooks_.reach();
    if (first_q_pos<Spec::kGroup>(stream_.item) - (start + kTileKv - 1) >= reach) return -1;
    return start - last_q_pos<Spec::kGroup>(stream_.item) >= reach ? 1 : 0;
  }
  // For the tiles on t's side.
  HEDDLE_DEVICE void ask(RowInfo (&rows)[2], int t) {
    for (int half = 0; half < 2; ++half) {
      rows[half].context.kv_pos = tile_start<kTileKv>(stream_.item, t);
      affine_[half] = AffineRow<Form>(hooks_, rows[half].context, sm_scale_);
    }
  }
  template <int kBlocks>
  HEDDLE_DEVICE void apply(float (&s)[kBlocks][4], RowState (&state)[2], int t) const {
    const int first = tile_start<kTileKv>(stream_.item, t) + lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float common = affine_[half].common(static_cast<float>(affine_[half].q_pos - first));
      transform_affine(s, half, affine_[half], common);
      state[half].shift = common * logit_to_log2<Form>(sm_scale_);
    }
  }

 private:
  const Hooks& hooks_;
  const AppendStream& stream_;
  const float sm_scale_;
  AffineRow<Form> affine_[2];
};

}  // namespace heddle
