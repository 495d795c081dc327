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
  // What registers allow: one consumer warpgroup has more than enough, three spill (custom_mask, relative_bias).
  static constexpr int kPollsAtOnce = Spec::kTile.rows > 128 ? 1 : 4;
  // One consumer warpgroup of wgmma: K and V are read once, as in decode, and there are registers.
  static constexpr bool kIsShort = Spec::kTile.q_buffers > 0 && Spec::kTile.rows == 64;

 public:
  HEDDLE_DEVICE AppendOutput(const AttentionParams& params, const Hooks& hooks, const MaskBounds& mask,
                             const WorkItem& item, int kv_head)
      : p_(params), hooks_(hooks), mask_(mask), item_(item), kv_head_(kv_head) {}

  // Writes rows[0] and rows[1] of the query tile, or publishes them where the item is a piece that another joins. All
  // lanes of a warp together: rows past the tile's end take part.
  HEDDLE_DEVICE void finish(Sums& o, const int (&rows)[2], const RowState (&states)[2]) const {
    RowSums row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) row[half] = {states[half].max2, quad_sum(states[half].sum)};
    if (item_.partial >= 0 && item_.join == 0) return publish_rows(o, rows, row);
    if (item_.join > 0) await_slots(rows[0] - lane_index() / 4);
    if (kIsShort && item_.join > 0) join_both(o, rows, row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!kIsShort && item_.join > 0) join(o, half, rows[half], row[half]);
      store(o, half, rows[half], row[half]);
    }
  }

 private:
  // Beside its accumulators.
  struct RowSums {
    float max2, sum;
  };

  static HEDDLE_DEVICE int lane_column() { return lane_index() % 4 * 2; }

  HEDDLE_DEVICE void store(const Sums& o, int half, int row, const RowSums& sums) const {
    const bool is_real = row < item_.num_rows;
    int kv_head = kv_head_;
    asm volatile("" : "+r"(kv_head));  // else the assembler finds its sign before a join, and keeps it in a register
    const HookContext context = row_info<Spec::kGroup>(mask_, item_, kv_head, row).context;
    if constexpr (Spec::kSharesPrefixes) {
      if (item_.request < 0) {
        if (is_real) keep_prefix(o, half, prefix_row<Spec>(p_, context) + prefix_state(item_), sums);
        return;
      }
    }
    const RowResult<Hooks> result = finish_row(sums.max2, sums.sum, context, hooks_);
    uint16_t* to = static_cast<uint16_t*>(p_.o) + context.q_row * p_.o_row_stride + context.qo_head * p_.o_head_stride;
#pragma unroll
    for (int block = 0; block + 4 <= kBlocks; block += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = output_pair(o, half, block + i, result, context);
      turn_over(pairs);
      if (is_real)
        put(reinterpret_cast<uint4*>(to + (block + lane_index() % 4) * 8), uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    }
#pragma unroll
    for (int block = kBlocks / 4 * 4; block < kBlocks; ++block) {
      const uint32_t pair = output_pair(o, half, block, result, context);
      if (is_real) *reinterpret_cast<uint32_t*>(to + block * 8 + lane_column()) = pair;
    }
    if (is_real && lane_column() == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
  }

  // For decode, which takes four columns at a time: in their own order.
  HEDDLE_DEVICE void keep_prefix(const Sums& o, int half, int64_t row, const RowSums& sums) const {
    const float scale = slot_scale<Hooks>(sums.sum);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      publish(reinterpret_cast<float2*>(p_.prefix_o + row * kHeadDim + block * 8 + lane_column()), scaled(o, block, half, scale));
    if (lane_column() == 0) publish(p_.prefix_lse + row, slot_lse2<Hooks>(sums.max2, sums.sum));
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

  template <class Words>
  static HEDDLE_DEVICE void put(Words* to, Words x) {
    if constexpr (kIsShort)
      store_kept(to, x);
    else
      *to = x;
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

  // --- slots ----------------------------------------------------------------------------------

  // A slot's row has the columns of two neighbouring blocks in the order of the lanes that hold them, four a lane, so
  // that one word of 16 bytes is a lane's; of an odd number of blocks the last has two a lane. Its lse is its flag.
  static constexpr int kPairs = kBlocks / 2;
  static constexpr bool kOddBlock = kBlocks % 2 == 1;
  static HEDDLE_DEVICE int pair_column(int pair) { return pair * 16 + lane_index() % 4 * 4; }
  static HEDDLE_DEVICE int odd_column() { return (kBlocks - 1) * 8 + lane_column(); }

  static HEDDLE_DEVICE float2 scaled(const Sums& o, int block, int half, float scale) {
    return {o[block][half * 2] * scale, o[block][half * 2 + 1] * scale};
  }

  HEDDLE_DEVICE int64_t slot_row(int slot, int row) const { return int64_t(item_.partial + slot) * Spec::kTile.rows + row; }

  HEDDLE_DEVICE void publish_rows(const Sums& o, const int (&rows)[2], const RowSums (&row)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half] >= item_.num_rows) continue;
      float* const to = p_.partial_o + slot_row(0, rows[half]) * kHeadDim;
      const float scale = slot_scale<Hooks>(row[half].sum);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const float2 left = scaled(o, 2 * pair, half, scale), right = scaled(o, 2 * pair + 1, half, scale);
        put(reinterpret_cast<float4*>(to + pair_column(pair)), float4{left.x, left.y, right.x, right.y});
      }
      if constexpr (kOddBlock) *reinterpret_cast<float2*>(to + odd_column()) = scaled(o, kBlocks - 1, half, scale);
    }
    fence_behind_warp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lane_column() == 0 && rows[half] < item_.num_rows)
        publish(p_.partial_lse + slot_row(0, rows[half]), slot_lse2<Hooks>(row[half].max2, row[half].sum));
  }

  // Until the slots that the item joins have all 16 rows of this warp, from `first_row` on.
  HEDDLE_DEVICE void await_slots(int first_row) const {
    const int row = first_row + lane_index() % 16;
    const bool wants = row < item_.num_rows;
    bool is_missing;
    do {
      is_missing = false;
#pragma unroll kPollsAtOnce
      for (int slot = 0; slot < item_.join; slot += 2) {
        const int own_slot = min_of(slot + lane_index() / 16, item_.join - 1);
        is_missing |= is_empty(load_relaxed(p_.partial_lse + slot_row(own_slot, row)));
      }
    } while (__any_sync(kFullMask, wants && is_missing));
    fence_in_front_of_warp();
  }

  // The row's state becomes that of the whole stream: its own, then the slots in their order. Slots have all rows of a
  // tile; what of them is past the item's end nobody looks at.
  HEDDLE_DEVICE void join(Sums& o, int half, int row, RowSums& sums) const {
    float scale = begin_join(sums);
#pragma unroll 1
    for (int slot = 0; slot < item_.join; ++slot) {
      const int64_t at = slot_row(slot, row);
      add_slot(o, half, first_words(at), at, sums, scale);
    }
  }

  // Both rows' words under way at once, where registers allow it.
  HEDDLE_DEVICE void join_both(Sums& o, const int (&rows)[2], RowSums (&sums)[2]) const {
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) scale[half] = begin_join(sums[half]);
#pragma unroll 1
    for (int slot = 0; slot < item_.join; ++slot) {
      SlotWords words[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) words[half] = first_words(slot_row(slot, rows[half]));
#pragma unroll
      for (int half = 0; half < 2; ++half) add_slot(o, half, words[half], slot_row(slot, rows[half]), sums[half], scale[half]);
    }
  }

  // As if the row came from a slot. Returns what its accumulators are still to be multiplied with.
  static HEDDLE_DEVICE float begin_join(RowSums& row) {
    const float sum = row.sum;
    row.max2 = slot_lse2<Hooks>(row.max2, sum);
    if constexpr (Hooks::use_softmax) row.sum = sum == 0.0f ? 0.0f : 1.0f;
    return slot_scale<Hooks>(sum);
  }

  // The first of a slot's words of a row are under way beside what they weigh: under load a round trip is some 2.5 us.
  static constexpr int kAtOnce = min_of(max_of(kPairs, 1), kBlocks > 16 ? 4 : 8);  // by registers
  struct SlotWords {
    float lse2;
    float4 pairs[kAtOnce];
  };
  HEDDLE_DEVICE const float* slot_words(int64_t slot_row) const { return p_.partial_o + slot_row * kHeadDim; }
  HEDDLE_DEVICE SlotWords first_words(int64_t slot_row) const {
    SlotWords words;
    words.lse2 = load_relaxed(p_.partial_lse + slot_row);
    load_pairs(words.pairs, slot_words(slot_row), 0);
    return words;
  }

  HEDDLE_DEVICE void add_slot(Sums& o, int half, SlotWords words, int64_t slot_row, RowSums& row, float& scale) const {
    const float* const from = slot_words(slot_row);
    float weight = 1.0f;
    if constexpr (Hooks::use_softmax) {
      const float top = fmaxf(row.max2, words.lse2);
      const float base = top == negative_infinity() ? 0.0f : top;
      weight = exp2_approx(words.lse2 - base);
      const float factor = exp2_approx(row.max2 - base);
      scale *= factor;
      row.sum = fmaf(row.sum, factor, weight);
      row.max2 = top;
    } else if constexpr (kCountsKeys<Hooks>) {
      row.sum += exp2_approx(words.lse2);
    }
#pragma unroll
    for (int first = 0; first < kPairs; first += kAtOnce) {
      if (first > 0) load_pairs(words.pairs, from, first);
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kPairs; ++i) {
        add(o[2 * (first + i)], half, {words.pairs[i].x, words.pairs[i].y}, weight, scale);
        add(o[2 * (first + i) + 1], half, {words.pairs[i].z, words.pairs[i].w}, weight, scale);
      }
    }
    if constexpr (kOddBlock)
      add(o[kBlocks - 1], half, load_relaxed(reinterpret_cast<const float2*>(from + odd_column())), weight, scale);
    scale = 1.0f;
  }

  template <int kCount>
  static HEDDLE_DEVICE void load_pairs(float4 (&pairs)[kCount], const float* from, int first) {
#pragma unroll
    for (int i = 0; i < kCount && first + i < kPairs; ++i)
      pairs[i] = load_relaxed(reinterpret_cast<const float4*>(from + pair_column(first + i)));
  }
  static HEDDLE_DEVICE void add(float (&block)[4], int half, float2 x, float weight, float scale) {
    float* mine = &block[half * 2];
    mine[0] = fmaf(x.x, weight, mine[0] * scale);
    mine[1] = fmaf(x.y, weight, mine[1] * scale);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const MaskBounds& mask_;
  const WorkItem& item_;
  const int kv_head_;
};

}  // namespace heddle
