// What becomes of one row's accumulators when its item is done, for both append kernels. O lies as
// products leave it (softmax.cuh): half `half` of a lane's elements is one row, two columns a block,
// and the four lanes of a quad hold the rest of that row.
#pragma once

#include "templates/merge.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendOutput {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kBlocks = kHeadDim / 8;
  using Type = Element<Spec::kType>;

 public:
  HEDDLE_DEVICE AppendOutput(const AttentionParams& params, const Hooks& hooks, const MaskBounds& mask,
                             const WorkItem& item, int kv_head)
      : p_(params), hooks_(hooks), mask_(mask), item_(item), kv_head_(kv_head) {}

  // Writes row `row` of the query tile, or publishes it where the item is a piece that another joins.
  HEDDLE_DEVICE void finish(float (&o)[kBlocks][4], int half, int row, const RowState& state) const {
    const float sum = quad_sum(state.sum);
    if (row >= item_.num_rows) return;
    if (item_.partial >= 0 && item_.join == 0)
      publish_row(o, half, row, state.max2, sum);
    else
      store(o, half, row, state.max2, sum);
  }

 private:
  static HEDDLE_DEVICE int lane_column() { return lane_index() % 4 * 2; }

  HEDDLE_DEVICE void store(float (&o)[kBlocks][4], int half, int row, float max2, float sum) const {
    if (item_.join > 0) join(o, half, row, max2, sum);
    const HookContext context = row_info<Spec::kGroup>(mask_, item_, kv_head_, row).context;
    const RowResult<Hooks> result = finish_row(max2, sum, context, hooks_);
    uint16_t* to = static_cast<uint16_t*>(p_.o) + context.q_row * p_.o_row_stride + context.qo_head * p_.o_head_stride;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int column = block * 8 + lane_column();
      float x = o[block][half * 2] * result.scale, y = o[block][half * 2 + 1] * result.scale;
      if constexpr (Hooks::has_output_transform) if (result.lse != negative_infinity()) {
        x = hooks_.output_transform(x, column, context);
        y = hooks_.output_transform(y, column + 1, context);
      }
      *reinterpret_cast<uint32_t*>(to + column) = Type::pack(x, y);
    }
    if (lane_column() == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
  }

  // The row's state becomes that of the whole stream: its own, then the slots in their order.
  HEDDLE_DEVICE void join(float (&o)[kBlocks][4], int half, int row, float& max2, float& sum) const {
    float scale = slot_scale<Hooks>(sum);
    max2 = slot_lse2<Hooks>(max2, sum);
    if constexpr (Hooks::use_softmax) sum = sum == 0.0f ? 0.0f : 1.0f;
#pragma unroll 1
    for (int s = 0; s < item_.join; ++s) {
      const int64_t slot_row = int64_t(item_.partial + s) * Spec::kTile.rows + row;
      const float lse2 = await(p_.partial_lse + slot_row);
      float weight = 1.0f;
      if constexpr (Hooks::use_softmax) {
        const float top = fmaxf(max2, lse2);
        const float base = top == negative_infinity() ? 0.0f : top;
        weight = exp2_approx(lse2 - base);
        const float factor = exp2_approx(max2 - base);
        scale *= factor;
        sum = fmaf(sum, factor, weight);
        max2 = top;
      } else if constexpr (kCountsKeys<Hooks>) {
        sum += exp2_approx(lse2);
      }
      constexpr int kAtOnce = kBlocks % 8 == 0 ? 8 : kBlocks % 4 == 0 ? 4 : 2;
#pragma unroll
      for (int first = 0; first < kBlocks; first += kAtOnce) {
        float2 x[kAtOnce];
        take_all(x, [&](int i) {
          return reinterpret_cast<float2*>(p_.partial_o + slot_row * kHeadDim + (first + i) * 8 + lane_column());
        });
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          float* mine = &o[first + i][half * 2];
          mine[0] = fmaf(x[i].x, weight, mine[0] * scale);
          mine[1] = fmaf(x[i].y, weight, mine[1] * scale);
        }
      }
      scale = 1.0f;
    }
  }

  HEDDLE_DEVICE void publish_row(const float (&o)[kBlocks][4], int half, int row, float max2, float sum) const {
    const int64_t slot_row = int64_t(item_.partial) * Spec::kTile.rows + row;
    const float scale = slot_scale<Hooks>(sum);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      publish(reinterpret_cast<float2*>(p_.partial_o + slot_row * kHeadDim + block * 8 + lane_column()),
              float2{o[block][half * 2] * scale, o[block][half * 2 + 1] * scale});
    if (lane_column() == 0) publish(p_.partial_lse + slot_row, slot_lse2<Hooks>(max2, sum));
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const MaskBounds& mask_;
  const WorkItem& item_;
  const int kv_head_;
};

}  // namespace heddle
