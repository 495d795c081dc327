// What becomes of one (work item, kv head) of decode: its team's states of its rows joined with those of other pieces and
// of shared prefixes and written out, or, of a piece that is not the last, published.
#pragma once

#include "templates/decode_slots.cuh"
#include "templates/decode_states.cuh"

namespace heddle {

template <class Spec, class Hooks>
class DecodeOutput {
  static constexpr int kHeadDimVo = Spec::kHeadDimVo;
  static constexpr int kThreads = Team<Spec>::kThreads;
  static constexpr int kLanes = row_lanes<kHeadDimVo>();
  // At once: as many as leave a small team with one round trip to the slots that it joins.
  static constexpr int kParts = kThreads >= 128 ? 1 : 2;

 public:
  HEDDLE_DEVICE DecodeOutput(const AttentionParams& p, const Hooks& hooks, const WorkItem& item, int kv_head)
      : p_(p), hooks_(hooks), item_(item), kv_head_(kv_head) {}

  // All threads of the team, whole warps, once each warp has shared its state: a lane takes four columns of a row, or of
  // several rows at once.
  HEDDLE_DEVICE void finish(const WarpStates<Spec, Hooks>& states, bool sees_keys) const {
    if constexpr (!kAsksAhead<Spec>) Team<Spec>::sync();
    bool are_shared = !kAsksAhead<Spec>;
#pragma unroll 1
    for (int first = Team<Spec>::thread(); !are_shared || first - lane_index() < item_.num_rows * kLanes; first += kParts * kThreads) {
      finish_parts(states, sees_keys, are_shared, first);
      are_shared = true;
    }
  }

  // All threads of the team, once all of them have finished: what was taken is put back for the next launch.
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
    const int64_t slot_row = slot_begin<Spec>(item_) + row;
    publish(reinterpret_cast<float4*>(p_.partial_o + slot_row * kHeadDimVo + column),
            state.o * slot_scale<Hooks>(state.sum));
    if (column == 0) publish(p_.partial_lse + slot_row, slot_lse2<Hooks>(state.max2, state.sum));
  }

  HEDDLE_DEVICE void finish_parts(const WarpStates<Spec, Hooks>& states, bool sees_keys, bool are_shared, int first) const {
    const bool is_piece = publishes();
    RowPart parts[kParts];
    HookContext contexts[kParts];
    JoinedState<Hooks> joined[kParts];
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      const int i = first + k * kThreads, row = i / kLanes, column = i % kLanes * 4;
      parts[k] = {row, column, row < item_.num_rows && column < kHeadDimVo};
      if (!is_piece) contexts[k] = context_of(row);
    }
    SlotReader<Spec, Hooks, kParts> slots(p_, item_, parts);
    if constexpr (kAsksAhead<Spec>) {
      slots.ask();
      if (!are_shared) Team<Spec>::sync();
    }
#pragma unroll
    for (int k = 0; k < kParts; ++k)
      if (sees_keys && parts[k].active) joined[k] = states.sum(parts[k].row, parts[k].column);
    if (item_.join > 0) join(joined, slots);
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      if (!parts[k].active) continue;
      if (is_piece)
        publish_state(parts[k].row, parts[k].column, joined[k]);
      else
        write_row(contexts[k], parts[k].column, joined[k]);
    }
  }

  // The other pieces' slots in their order, then the item's own state, as if it came from a slot.
  HEDDLE_DEVICE void join(JoinedState<Hooks> (&states)[kParts], SlotReader<Spec, Hooks, kParts>& slots) const {
    float lse2[kParts];
    float4 o[kParts];
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      lse2[k] = slot_lse2<Hooks>(states[k].max2, states[k].sum);
      o[k] = states[k].o * slot_scale<Hooks>(states[k].sum);
      states[k] = {};
    }
    slots.template add_to<kAsksAhead<Spec>>(states);
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      states[k].raise(lse2[k]);
      states[k].add(lse2[k], o[k]);
    }
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
    for (int i = Team<Spec>::thread(); i < item_.num_rows * num_states; i += kThreads)
      put_back_empty(p_.prefix_lse + prefix_row<Spec>(p_, context_of(i / num_states)) + i % num_states);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const WorkItem& item_;
  const int kv_head_;
};

}  // namespace heddle
