// What becomes of one row's accumulators when its item is done, for both append kernels. O lies as
// products leave it (softmax.cuh): half `half` of a lane's elements is one row, two columns a block,
// and the four lanes of a quad hold the rest of that row. Before a store the quad turns four blocks
// over, so that each lane has the eight columns of one: 16 bytes at a time instead of 4.
#pragma once

#include "templates/merge.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendOutput {
  static constexpr int kHeadDim = Spec::kHeadDimVo;
  static constexpr int kBlocks = kHeadDim / 8;  // of a row
  using Sums = float[tile_columns(kHeadDim) / 8][4];
  using Type = Element<Spec::kType>;

 public:
  HEDDLE_DEVICE AppendOutput(const AttentionParams& params, const Hooks& hooks, const MaskBounds& mask,
                             const WorkItem& item, int kv_head)
      : p_(params), hooks_(hooks), mask_(mask), item_(item), kv_head_(kv_head) {}

  // Writes row `row` of the query tile, or publishes it where the item is a piece that another joins.
  HEDDLE_DEVICE void finish(Sums& o, int half, int row, const RowState& state) const {
    const float sum = quad_sum(state.sum);
    if (item_.partial < 0 || item_.join > 0)
      store(o, half, row, state.max2, sum);
    else if (row < item_.num_rows)
      publish_row(o, half, row, state.max2, sum);
  }

 private:
  static HEDDLE_DEVICE int lane_column() { return lane_index() % 4 * 2; }

  // All lanes of a warp together: rows past the tile's end take part in the turning over.
  HEDDLE_DEVICE void store(Sums& o, int half, int row, float max2, float sum) const {
    const bool is_real = row < item_.num_rows;
    if (item_.join > 0) join(o, half, row, Together{is_real}, max2, sum);
    const HookContext context = row_info<Spec::kGroup>(mask_, item_, kv_head_, row).context;
    if constexpr (Spec::kSharesPrefixes) {
      if (item_.request < 0) {
        if (is_real) keep_prefix(o, half, prefix_row<Spec>(p_, context) + prefix_level(item_), max2, sum);
        return;
      }
    }
    const RowResult<Hooks> result = finish_row(max2, sum, context, hooks_);
    uint16_t* to = static_cast<uint16_t*>(p_.o) + context.q_row * p_.o_row_stride + context.qo_head * p_.o_head_stride;
#pragma unroll
    for (int block = 0; block + 4 <= kBlocks; block += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = output_pair(o, half, block + i, result, context);
      turn_over(pairs);
      if (is_real)
        *reinterpret_cast<uint4*>(to + (block + lane_index() % 4) * 8) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
#pragma unroll
    for (int block = kBlocks / 4 * 4; block < kBlocks; ++block) {
      const uint32_t pair = output_pair(o, half, block, result, context);
      if (is_real) *reinterpret_cast<uint32_t*>(to + block * 8 + lane_column()) = pair;
    }
    if (is_real && lane_column() == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
  }

  // As publish_row() does, for the kernel behind this one.
  HEDDLE_DEVICE void keep_prefix(const Sums& o, int half, int64_t row, float max2, float sum) const {
    const float scale = slot_scale<Hooks>(sum);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      publish(reinterpret_cast<float2*>(p_.prefix_o + row * kHeadDim + block * 8 + lane_column()),
              float2{o[block][half * 2] * scale, o[block][half * 2 + 1] * scale});
    if (lane_column() == 0) publish(p_.prefix_lse + row, slot_lse2<Hooks>(max2, sum));
  }

  // This lane's two columns of a block, as they are stored.
  HEDDLE_DEVICE uint32_t output_pair(const Sums& o, int half, int block, const RowResult<Hooks>& result,
                                     const HookContext& context) const {
    float x = o[block][half * 2] * result.scale, y = o[block][half * 2 + 1] * result.scale;
    if constexpr (Hooks::has_output_transform) if (result.lse != negative_infinity()) {
      x = hooks_.output_transform(x, block * 8 + lane_column(), context);
      y = hooks_.output_transform(y, block * 8 + lane_column() + 1, context);
    }
    return Type::pack(x, y);
  }

  // Lane l of a quad has word l of blocks 0 to 3; afterwards words 0 to 3 of block l. First neighbours
  // swap, then pairs of lanes.
  static HEDDLE_DEVICE void turn_over(uint32_t (&words)[4]) {
    const bool is_odd = lane_index() & 1, is_upper = lane_index() & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t other = __shfl_xor_sync(kFullMask, is_odd ? words[i] : words[i + 1], 1);
      const uint32_t own = is_odd ? words[i + 1] : words[i];
      words[i] = is_odd ? other : own;
      words[i + 1] = is_odd ? own : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(kFullMask, is_upper ? words[i] : words[i + 2], 2);
      const uint32_t own = is_upper ? words[i + 2] : words[i];
      words[i] = is_upper ? other : own;
      words[i + 2] = is_upper ? own : other;
    }
  }

  // The row's state becomes that of the whole stream: its own, then the slots in their order. Slots have all rows of a
  // tile; those past the item's end are never published.
  HEDDLE_DEVICE void join(Sums& o, int half, int row, const Together& who, float& max2, float& sum) const {
    float scale = slot_scale<Hooks>(sum);
    max2 = slot_lse2<Hooks>(max2, sum);
    if constexpr (Hooks::use_softmax) sum = sum == 0.0f ? 0.0f : 1.0f;
#pragma unroll 1
    for (int s = 0; s < item_.join; ++s) {
      const int64_t slot_row = int64_t(item_.partial + s) * Spec::kTile.rows + row;
      const float lse2 = await(p_.partial_lse + slot_row, who);
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
      constexpr int kAtOnce = kBlocks % 8 == 0 ? 8 : kBlocks % 4 == 0 || kBlocks % 2 == 1 ? 4 : 2;
#pragma unroll
      for (int first = 0; first < kBlocks; first += kAtOnce) {
        float2 x[kAtOnce];
        // The last block stands in for those behind it.
        const auto at = [&](int i) {
          const int block = min_of(first + i, kBlocks - 1);
          return reinterpret_cast<float2*>(p_.partial_o + slot_row * kHeadDim + block * 8 + lane_column());
        };
        take_all(x, at, who);
#pragma unroll
        for (int i = 0; i < kAtOnce && first + i < kBlocks; ++i) {
          float* mine = &o[first + i][half * 2];
          mine[0] = fmaf(x[i].x, weight, mine[0] * scale);
          mine[1] = fmaf(x[i].y, weight, mine[1] * scale);
        }
      }
      scale = 1.0f;
    }
  }

  HEDDLE_DEVICE void publish_row(const Sums& o, int half, int row, float max2, float sum) const {
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
