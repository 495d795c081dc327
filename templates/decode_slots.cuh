// The slots that an item of decode joins (merge.cuh), as its threads read and empty them.
#pragma once

#include "templates/merge.cuh"

namespace heddle {

// Four columns of a row that a thread of decode finishes. All lanes of a warp take part; those that are not `active` have
// none.
struct RowPart {
  int row, column;
  bool active;
};

// Whether they are asked for before the other warps' states are there: 16 rows leave no registers for that.
template <class Spec>
inline constexpr bool kAsksAhead = Spec::kTile.rows == 8;

// Adds them to the states of a thread's parts: all lanes of a warp together, each of which also asks for the lse of one slot
// of each of its rows. Every word of o has one reader, who empties it; words of lse may have several: empty_lse() after a
// barrier of the team.
template <class Spec, class Hooks, int kParts>
class SlotReader {
  static constexpr int kWarpsOfSm = Spec::kTile.warps * Spec::kTile.ctas_per_sm;
  static constexpr int kUnderWay = kWarpsOfSm <= 8 ? 16 : kAsksAhead<Spec> ? 6 : 8;  // words, by registers
  static constexpr int kAhead = kUnderWay / kParts;                                  // slots
  static constexpr int kLanes = min_of(row_lanes<Spec::kHeadDimVo>(), kWarpSize);
  using States = JoinedState<Hooks>[kParts];

 public:
  HEDDLE_DEVICE SlotReader(const AttentionParams& p, const WorkItem& item, const RowPart (&parts)[kParts])
      : join_(item.join) {
    const int64_t first_row = slot_begin<Spec>(item);
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      is_row_[k] = parts[k].row < item.num_rows;
      is_active_[k] = parts[k].active;
      // Where there is no part, the first words of the slot stand in.
      lse_[k] = p.partial_lse + first_row + (is_row_[k] ? parts[k].row : 0);
      o_[k] = p.partial_o + first_row * Spec::kHeadDimVo + (is_active_[k] ? parts[k].row * Spec::kHeadDimVo + parts[k].column : 0);
    }
  }

  // The first slots' words, beside the lse that they are weighed by, are under way from here on: a round trip is 0.5 us.
  HEDDLE_DEVICE void ask() {
    if (join_ > 0) ask_for(0, min_of(kLanes, join_));
  }

  template <bool kAsked>
  HEDDLE_DEVICE void add_to(States& states) {
#pragma unroll 1
    for (int begin = 0; begin < join_; begin += kLanes) {
      const int count = min_of(kLanes, join_ - begin);
      if (!kAsked || begin > 0) ask_for(begin, count);
      while (is_missing(count)) ask_for(begin, count);
      add_some(states, begin, count);
    }
  }

 private:
  HEDDLE_DEVICE void ask_for(int begin, int count) {
#pragma unroll
    for (int k = 0; k < kParts; ++k)
      lse2_[k] = load_relaxed(lse_[k] + (begin + (lane() < count ? lane() : 0)) * kSlotRows<Spec>);
#pragma unroll
    for (int k = 0; k < kParts; ++k)
#pragma unroll
      for (int i = 0; i < kAhead; ++i) x_[k][i] = load_relaxed(at(k, begin + min_of(i, count - 1)));
  }

  HEDDLE_DEVICE bool is_missing(int count) const {
    bool missing = false;
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) top = max_of(top, top_bits(x_[k][i]));
      missing |= (weighs_slot(k, count) && is_empty(lse2_[k])) || (is_active_[k] && top == kEmptyWord);
    }
    return missing;
  }

  HEDDLE_DEVICE void add_some(States& states, int begin, int count) {
    float weight[kParts], sum[kParts];
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      const float lse2 = weighs_slot(k, count) ? lse2_[k] : negative_infinity();
      float top = lse2;
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(kFullMask, top, step));
      states[k].raise(top);
      weight[k] = lane() < count ? states[k].weight_of(lse2) : 0.0f;
      sum[k] = lane() < count ? JoinedState<Hooks>::sum_of(lse2, weight[k]) : 0.0f;
    }
#pragma unroll 1
    for (int s = 0; s < count; s += kAhead) {
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        if (!is_active_[k]) continue;
        const auto next = [&](int i) { return at(k, begin + min_of(s + i, count - 1)); };
        if (s > 0) await_all(x_[k], next);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) put_back_empty(next(i));
      }
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const float w = __shfl_sync(kFullMask, weight[k], s + i, kLanes), add = __shfl_sync(kFullMask, sum[k], s + i, kLanes);
          if (s + i >= count) continue;
          states[k].o = states[k].o + x_[k][i] * w;
          states[k].sum += add;
        }
      }
    }
  }

  static HEDDLE_DEVICE int lane() { return lane_index() % kLanes; }
  HEDDLE_DEVICE bool weighs_slot(int k, int count) const { return is_row_[k] && lane() < count; }
  HEDDLE_DEVICE float4* at(int k, int slot) const {
    return reinterpret_cast<float4*>(o_[k] + slot * kSlotRows<Spec> * Spec::kHeadDimVo);
  }

  const int join_;
  bool is_row_[kParts], is_active_[kParts];
  float* lse_[kParts];
  float* o_[kParts];
  float lse2_[kParts];
  float4 x_[kParts][kAhead];
};

}  // namespace heddle
