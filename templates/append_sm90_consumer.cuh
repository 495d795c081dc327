// A consumer warpgroup of append_sm90: 64 packed rows of each stream, from the tiles of the ring to results
// in memory. Stages of the ring: append_sm90_stages.cuh. The schedule and what it brought stand in append_sm90.cuh.
#pragma once

#include "templates/append_sm90_products.cuh"
#include "templates/append_sm90_stages.cuh"
#include "templates/far_tiles.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90Consumer {
  using Stages = ConsumerStages<Spec>;
  using Products = ConsumerProducts<Spec, Hooks>;
  using Smem = AppendSm90Smem<Spec>;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kBlocks = kTileKv / 8;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kThreads = kGroups * kWarpgroupSize;
  static constexpr bool kTurns = kGroups > 1;
  static constexpr bool kOverlapsStreams = Smem::kQBuffers > 1;
  // Among exponentials, but behind hooks that need the registers themselves.
  static constexpr bool kLooksAheadLate = !kChangesEveryLogit<Hooks>;
  // Beside a loader that transforms keys, registers are short.
  static constexpr bool kReadsAffineOnce = Hooks::logits_are_affine && !Hooks::has_key_transform && !Hooks::has_value_transform;

 public:
  HEDDLE_DEVICE AppendSm90Consumer(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), stages_(smem), group_(uniform(threadIdx.x / kWarpgroupSize)), products_(smem, group_) {}

  HEDDLE_DEVICE void run() {
    if (kTurns && group_ == kGroups - 1) end_turn();  // the first turn is group 0's
    products_.clear_o();
    const AppendStream* last = nullptr;
    for (;; ++number_) {
      if constexpr (!kOverlapsStreams) {
        if (last != nullptr) finish_alone(*last);
        last = nullptr;
      }
      barrier_wait(&smem_.q_full[q_buffer()], number_ / Smem::kQBuffers % 2);
      const AppendStream& stream = smem_.record(number_);
      first_tile(stream, last);
      if (stream.is_end) break;
      next_tiles(stream);
      Stages::release(&smem_.q_empty[q_buffer()]);
      last = &stream;
    }
    if (kTurns && group_ == 0) begin_turn();  // takes the last turn, which nobody wants
  }

 private:
  // --- turns ----------------------------------------------------------------------------------

  HEDDLE_DEVICE void begin_turn() const {
    if constexpr (kTurns) named_barrier_sync(kTurnBarrier + group_, 2 * kWarpgroupSize);
  }
  HEDDLE_DEVICE void end_turn() const {
    if constexpr (kTurns) named_barrier_arrive(kTurnBarrier + (group_ + 1) % kGroups, 2 * kWarpgroupSize);
  }

  HEDDLE_DEVICE int q_buffer() const { return number_ % Smem::kQBuffers; }

  // --- streams --------------------------------------------------------------------------------

  // From one stream to the next: the first scores of `stream` stand beside the last product P V of `last`,
  // and results are stored while other warpgroups are at products. Either may be missing (at the CTA's
  // begin and end, and where rows see no key): its product is then issued all the same, on whatever
  // the tiles hold, and nobody looks at it. So there is one such place in the kernel, without a
  // branch around products.
  HEDDLE_DEVICE void first_tile(const AppendStream& stream, const AppendStream* last) {
    float s[kBlocks][4];
    const bool has_scores = !stream.is_end && has_tiles(stream), has_values = last != nullptr && has_tiles(*last);
    const int v = kOverlapsStreams && has_values ? stages_.acquire() : 0, k = has_scores ? stages_.acquire() : 0;
    const uint32_t queries = products_.queries_at(q_buffer()), keys = products_.keys_at(k), values = products_.values_at(v);
    if constexpr (Products::kQueriesInRegisters) products_.load_queries(q_buffer());
    Stages::fence_tiles();
    if (kReadsAffineOnce && has_scores) read_affine(stream);
    begin_turn();
    products_.score(s, queries, keys);
    if constexpr (kOverlapsStreams) products_.accumulate(values);
    end_turn();
    wgmma_wait<kOverlapsStreams ? 1 : 0>();
    pin_registers(s);
    if (has_scores) stages_.release(k);
    const RowState state[2] = {state_[0], state_[1]};
    state_[0] = state_[1] = empty_row_state();
    if (has_scores) {
      apply_hooks<true>(s, stream, stream.item.tile_end - 1);  // once a stream, whether a boundary or not
      float rescale[2];  // of nothing
      if constexpr (Hooks::use_softmax) update_softmax<Hooks>(s, state_, rescale, logit_to_log2<Hooks>(p_.sm_scale));
    }
    if constexpr (kOverlapsStreams) {
      wgmma_wait<0>();
      products_.pin_o();
      if (has_values) stages_.release(v);
    }
    stages_.look_ahead();
    products_.pack(s);
    if (last != nullptr) finish(*last, state, has_values);
    products_.clear_o();
  }

  // What all rows see as a whole has no mask code. Where hooks change every logit, tiles of one kind have a loop of
  // their own (a branch around the hooks cost soft_cap a tenth), else all share one, which compiles in 3/4 of the time.
  HEDDLE_DEVICE void next_tiles(const AppendStream& stream) {
    if constexpr (Hooks::has_far_form) return next_tiles_by_distance(stream);
    if constexpr (kCapsLogits<Hooks>) return next_tiles_under_cap(stream);
    const int begin = stream.item.tile_begin;
    const int full_begin = max_of(stream.full_begin, begin), full_end = stream.full_end;
    int t = stream.item.tile_end - 2;
    const auto mask = [&](float (&s)[kBlocks][4]) { apply_hooks<true>(s, stream, t); };
    if constexpr (kChangesEveryLogit<Hooks>) {
      while (t >= begin) {
        for (; t < full_end && t >= full_begin; --t)
          next_tile([&](float (&s)[kBlocks][4]) { apply_hooks<false>(s, stream, t); });
        if (t >= begin) next_tile(mask), --t;
      }
    } else {
      for (; t >= begin; --t)
        next_tile([&](float (&s)[kBlocks][4]) {
          if (t >= full_end || t < full_begin) mask(s);
        });
    }
  }

  // Far tiles have a loop of their own. The others, few, share one.
  HEDDLE_DEVICE void next_tiles_by_distance(const AppendStream& stream) {
    FarTiles<Spec, Hooks> far(hooks_, stream, p_.sm_scale);
    for (int t = stream.item.tile_end - 2; t >= stream.item.tile_begin;) {
      const int side = far.side(t);
      if (side == 0) {
        const bool is_whole = t >= stream.full_begin && t < stream.full_end;
        next_tile([&](float (&s)[kBlocks][4]) {
          if (is_whole)
            apply_hooks<false>(s, stream, t);
          else
            apply_hooks<true>(s, stream, t);
        });
        --t;
        continue;
      }
      RowInfo rows[2];
      place_rows<false>(rows, stream);
      far.ask(rows, t);
      do next_tile<FarForm<Hooks>>([&](float (&s)[kBlocks][4]) { far.apply(s, state_, t); }), --t;
      while (t >= stream.item.tile_begin && far.side(t) == side);
    }
  }

  // Tiles whose logits are small beside their cap part from others behind their products.
  HEDDLE_DEVICE void next_tiles_under_cap(const AppendStream& stream) {
    const CappedLog2 capped(hooks_, p_.sm_scale);
    const int num_rows = stream.item.num_rows;
    for (int t = stream.item.tile_end - 2; t >= stream.item.tile_begin; --t) {
      float s[kBlocks][4];
      const typename Stages::Pair at = begin_tile(s);
      const float top[2] = {largest_logit(s, 0), largest_logit(s, 1)};  // dot products
      if (t >= stream.full_end || t < stream.full_begin || !capped.grows()) {
        apply_hooks<true>(s, stream, t);
        weigh_tile<Hooks>(s, at, logit_to_log2<Hooks>(p_.sm_scale));
      } else if (are_small(top, capped, num_rows)) {
        weigh_tile<Hooks>(s, at, capped, [&](int half) { return top[half]; });
      } else {
        apply_hooks<false>(s, stream, t);
        // The largest logit is that of the largest dot product.
        weigh_tile<Hooks>(s, at, logit_to_log2<Hooks>(p_.sm_scale), [&](int half) {
          return hooks_.logits_transform(top[half] * p_.sm_scale, HookContext{});
        });
      }
      products_.pack(s);
    }
  }
  // Of the warp's rows that are the request's own: behind them there may be another's, or no numbers.
  HEDDLE_DEVICE bool are_small(const float (&top)[2], const CappedLog2& capped, int num_rows) const {
    bool are_small = true;
    for (int half = 0; half < 2; ++half)
      are_small &= own_row(half) >= num_rows || capped.serves(top[half], state_[half].max2);
    return __all_sync(kFullMask, are_small);
  }

  // Where one query tile is all that fits, the next one is on its way only when this is done.
  HEDDLE_DEVICE void finish_alone(const AppendStream& stream) {
    const bool has_values = has_tiles(stream);
    if (has_values) {
      const int v = stages_.acquire();
      const uint32_t values = products_.values_at(v);
      Stages::fence_tiles();
      products_.accumulate(values);
      wgmma_wait<0>();
      products_.pin_o();
      stages_.release(v);
    }
    finish(stream, state_, has_values);
  }

  static HEDDLE_DEVICE bool has_tiles(const AppendStream& stream) {
    return stream.item.tile_begin < stream.item.tile_end;
  }

  // --- one tile -------------------------------------------------------------------------------

  // `apply_hooks(s)` on its logits.
  template <class Form = Hooks, class ApplyHooks>
  HEDDLE_DEVICE void next_tile(const ApplyHooks& apply_hooks) {
    float s[kBlocks][4];
    const typename Stages::Pair at = begin_tile(s);
    if constexpr (kChangesEveryLogit<Hooks>) Stages::stay_here(at.keys);  // else there is the branch around the hooks
    apply_hooks(s);
    weigh_tile<Form>(s, at, logit_to_log2<Form>(p_.sm_scale));
    products_.pack(s);
  }

  // Its products, and P V of the tile in front, under way; and its scores.
  HEDDLE_DEVICE typename Stages::Pair begin_tile(float (&s)[kBlocks][4]) {
    const typename Stages::Pair at = stages_.acquire_pair();
    const uint32_t queries = products_.queries_at(q_buffer()), keys = products_.keys_at(at.keys), values = products_.values_at(at.values);
    begin_turn();
    products_.score(s, queries, keys);
    products_.accumulate(values);
    end_turn();
    if constexpr (!kLooksAheadLate) stages_.look_ahead();
    wgmma_wait<1>();
    pin_registers(s);
    stages_.release(at.keys);
    return at;
  }

  // The wait for P V stands between the two rows' weights: then the packing of one row's and the rescaling of O fill the
  // gaps between the exponentials of the other.
  template <class Form, class Log2>
  HEDDLE_DEVICE void weigh_tile(float (&s)[kBlocks][4], const typename Stages::Pair& at, const Log2& to_log2) {
    weigh_tile<Form>(s, at, to_log2, [&](int half) { return largest_logit(s, half); });
  }
  template <class Form, class Log2, class TopOf>
  HEDDLE_DEVICE void weigh_tile(float (&s)[kBlocks][4], const typename Stages::Pair& at, const Log2& to_log2, const TopOf& top_of) {
    float rescale[2] = {1.0f, 1.0f};
    if constexpr (Hooks::use_softmax) {
#pragma unroll
      for (int half = 0; half < 2; ++half) rescale[half] = raise_max<Form>(top_of(half), state_[half], to_log2);
      weigh_row<Form>(s, 0, state_[0], rescale[0], to_log2);
    }
    pin_registers(s);
    Stages::stay_here(at.values);
    wgmma_wait<0>();
    products_.pin_o();
    stages_.release(at.values);
    if constexpr (kLooksAheadLate) stages_.look_ahead();
    if constexpr (Hooks::use_softmax) {
      weigh_row<Form>(s, 1, state_[1], rescale[1], to_log2);
      products_.multiply_o(rescale);
    }
  }

  // --- softmax ------------------------------------------------------------------------------------

  template <bool kMasked>
  HEDDLE_DEVICE void apply_hooks(float (&s)[kBlocks][4], const AppendStream& stream, int t) {
    if constexpr (kMasked || kChangesEveryLogit<Hooks>) {
      RowInfo rows[2];
      place_rows<kMasked>(rows, stream);
      if constexpr (!kReadsAffineOnce)
        apply_variant<kMasked>(s, rows, state_, tile_start<kTileKv>(stream.item, t), p_.sm_scale, hooks_);
      else
        apply_variant<kMasked>(s, rows, affine_, state_, tile_start<kTileKv>(stream.item, t), p_.sm_scale, hooks_);
    }
  }

  template <bool kMasked>
  HEDDLE_DEVICE void place_rows(RowInfo (&rows)[2], const AppendStream& stream) const {
    for (int half = 0; half < 2; ++half) rows[half] = row_of<Spec>(stream, own_row(half));
    if constexpr (kMasked)
      for (RowInfo& row : rows) take_given_range<Spec>(row, reinterpret_cast<const PlanHeader*>(p_.plan));
  }

  // Once a stream, before its products are waited for.
  HEDDLE_DEVICE void read_affine(const AppendStream& stream) {
    RowInfo rows[2];
    place_rows<true>(rows, stream);
    for (int half = 0; half < 2; ++half) affine_[half] = affine_row<true>(rows[half], p_.sm_scale, hooks_);
  }

  // Row of the tile that half `half` of this thread's accumulators belongs to.
  static HEDDLE_DEVICE int own_row(int half) { return warp_index() * 16 + half * 8 + lane_index() / 4; }

  // --- results ----------------------------------------------------------------------------------

  HEDDLE_DEVICE void finish(const AppendStream& stream, const RowState (&state)[2], bool has_values) {
    if (kOverlapsStreams && !has_values) products_.clear_o();
    const AppendOutput<Spec, Hooks> output(p_, hooks_, stream.mask, stream.item, stream.kv_head);
    output.finish(products_.o(), {own_row(0), own_row(1)}, state);
    if (stream.item.join == 0) return;
    named_barrier_sync(kConsumerBarrier, kThreads);
    empty_lse<Spec>(p_, stream.item, kThreads);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  Stages stages_;
  const int group_;
  int number_ = 0;  // of the stream, as the producer counts
  RowState state_[2] = {empty_row_state(), empty_row_state()};
  AffineRow<Hooks> affine_[2];
  Products products_;
};

}  // namespace heddle
