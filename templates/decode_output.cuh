// What becomes of one (work item, kv head) of decode: the warps' states of its rows joined with those of other pieces and
// of shared prefixes and written out, or, of a piece that is not the last, published.
#pragma once

#include "templates/decode_states.cuh"

namespace heddle {

template <class Spec, class Hooks>
class DecodeOutput {
  static constexpr int kHeadDimVo = Spec::kHeadDimVo;
  static constexpr int kRows = Spec::kTile.rows;
  static constexpr int kThreads = Spec::kTile.warps * kWarpSize;

 public:
  HEDDLE_DEVICE DecodeOutput(const AttentionParams& p, const Hooks& hooks, const WorkItem& item, int kv_head)
      : p_(p), hooks_(hooks), item_(item), kv_head_(kv_head) {}

  // All threads, whole warps: a lane takes four columns of a row.
  HEDDLE_DEVICE void finish(const WarpStates<Spec, Hooks>& states, bool sees_keys) const {
    constexpr int kLanes = row_lanes<kHeadDimVo>();
    const int num_rows = item_.num_rows;
#pragma unroll 1
    for (int i = threadIdx.x; i - lane_index() < num_rows * kLanes; i += kThreads) {
      const int row = i / kLanes, column = i % kLanes * 4;
      const bool active = row < num_rows && column < kHeadDimVo;
      // Asked for ahead of the states that a join waits for.
      const bool is_piece = publishes();
      HookContext context;
      if (!is_piece) context = context_of(row);
      JoinedState<Hooks> state;
      if (sees_keys && active) state = states.sum(row, column);
      if (item_.join > 0) join(state, row, column, active);
      if (!active) continue;
      if (is_piece)
        publish_state(row, column, state);
      else
        write_row(context, column, state);
    }
  }

  // All threads, once all of them have finished: what was taken is put back for the next launch.
  HEDDLE_DEVICE void empty_slots() const {
    if (item_.join > 0) empty_lse<Spec>(p_, item_, kThreads);
    if constexpr (Spec::kSharesPrefixes) empty_prefixes();
  }

 private:
  HEDDLE_DEVICE bool publishes() const { return item_.partial >= 0 && item_.join == 0; }

  HEDDLE_DEVICE HookContext context_of(int row) const {
    return row_info<Spec::kGroup>(reinterpret_cast<const PlanHeader*>(p_.plan)->mask, item_, kv_head_, row).context;
  }

  HEDDLE_DEVICE void publish_state(int row, int column, const JoinedState<Hooks>& state) const {
    const int64_t slot_row = int64_t(item_.partial) * kRows + row;
    publish(reinterpret_cast<float4*>(p_.partial_o + slot_row * kHeadDimVo + column),
            state.o * slot_scale<Hooks>(state.sum));
    if (column == 0) publish(p_.partial_lse + slot_row, slot_lse2<Hooks>(state.max2, state.sum));
  }

  // The other pieces' slots in their order, then the item's own state, as if it came from a slot.
  HEDDLE_DEVICE void join(JoinedState<Hooks>& state, int row, int column, bool active) const {
    const float lse2 = slot_lse2<Hooks>(state.max2, state.sum);
    const float4 o = state.o * slot_scale<Hooks>(state.sum);
    state = {};
    add_slots<Spec>(state, p_, item_, row, column, active);
    state.raise(lse2);
    state.add(lse2, o);
  }

  HEDDLE_DEVICE void write_row(const HookContext& context, int column, JoinedState<Hooks>& state) const {
    if constexpr (Spec::kSharesPrefixes)
      if (item_.prefix_states > 0) add_prefixes<Spec>(state, p_, context, column, item_.prefix_states);
    const RowResult<Hooks> result = finish_row(state.max2, state.sum, context, hooks_);
    store_output<Spec>(p_, context, column, state.o * result.scale, result.lse, hooks_);
    if (column == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
  }

  HEDDLE_DEVICE void empty_prefixes() const {
    if (publishes()) return;
    const int num_states = item_.prefix_states;
#pragma unroll 1
    for (int i = threadIdx.x; i < item_.num_rows * num_states; i += kThreads)
      put_back_empty(p_.prefix_lse + prefix_row<Spec>(p_, context_of(i / num_states)) + i % num_states);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const WorkItem& item_;
  const int kv_head_;
};

}  // namespace heddle
