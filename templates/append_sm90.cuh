// Append on wgmma (sm_90a): any qo_len; FlashAttention-3's schedule over a work list.
//
// A producer warpgroup (append_sm90_load.cuh) feeds a ring of K and V tiles; each consumer
// warpgroup owns 64 packed (token, head in group) rows. Within a consumer the softmax of tile t runs under the
// product P V of tile t - 1; between consumers, turns make the softmax of one run under the
// products of the other.
//
//   issue S(t) = Q K(t)^T, O += P(t - 1) V(t - 1) | wait S | softmax -> weights | wait O | rescale O, pack P(t)
//
// shared memory:  Q q_buffers x rows x D | ring: stages x kv x D | barriers, records
#pragma once

#include "templates/append_sm90_load.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90Consumer {
  using Smem = AppendSm90Smem<Spec>;
  using QTile = typename Smem::QTile;
  using KvTile = typename Smem::KvTile;
  using Type = Element<Spec::kType>;
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kBlocks = kTileKv / 8;
  static constexpr int kOutBlocks = kHeadDim / 8;
  static constexpr int kKeySteps = kTileKv / 16;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kThreads = kGroups * kWarpgroupSize;
  static constexpr bool kTurns = kGroups > 1;

 public:
  HEDDLE_DEVICE AppendSm90Consumer(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), group_(uniform(threadIdx.x / kWarpgroupSize)) {}

  HEDDLE_DEVICE void run() {
    if (kTurns && group_ == kGroups - 1) end_turn();  // the first turn is group 0's
    for (;; ++stream_number_) {
      barrier_wait(&smem_.q_full[q_.stage], q_.parity);
      stream_ = &smem_.record(stream_number_);
      if (stream_->is_end) break;
      attend();
      finish();
      q_.advance();
    }
    if (kTurns && group_ == 0) begin_turn();  // takes the last turn, which nobody wants
  }

 private:
  // --- turns and stages -----------------------------------------------------------------------

  HEDDLE_DEVICE void begin_turn() const {
    if constexpr (kTurns) named_barrier_sync(kTurnBarrier + group_, 2 * kWarpgroupSize);
  }
  HEDDLE_DEVICE void end_turn() const {
    if constexpr (kTurns) named_barrier_arrive(kTurnBarrier + (group_ + 1) % kGroups, 2 * kWarpgroupSize);
  }

  // The next stage of the ring, filled.
  HEDDLE_DEVICE uint32_t acquire() {
    const int stage = uniform(ring_.stage);
    barrier_wait(&smem_.full[stage], ring_.parity);
    const uint32_t tile = shared_address(smem_.stage[stage]);
    ring_.advance();
    return tile;
  }
  // Stages are given back in the order in which they were acquired.
  HEDDLE_DEVICE void release() {
    release(&smem_.empty[released_]);
    released_ = released_ + 1 == Smem::kStages ? 0 : released_ + 1;
  }
  static HEDDLE_DEVICE void release(const uint64_t* empty) {
    if (lane_index() == 0) barrier_arrive(empty);
  }

  // --- one stream -----------------------------------------------------------------------------

  HEDDLE_DEVICE void attend() {
#pragma unroll
    for (int block = 0; block < kOutBlocks; ++block)
      for (int e = 0; e < 4; ++e) o_[block][e] = 0.0f;
    state_[0] = state_[1] = empty_row_state();
    const int begin = stream_->item.tile_begin, end = stream_->item.tile_end;
    if (begin < end) {
      first_tile(begin);
      for (int t = begin + 1; t < end; ++t) next_tile(t);
    }
    release(&smem_.q_empty[q_.stage]);
    if (begin < end) last_values();
  }

  HEDDLE_DEVICE void first_tile(int t) {
    float s[kBlocks][4], factor[2];
    const uint32_t k = acquire();
    begin_turn();
    score(s, k);
    end_turn();
    wgmma_wait<0>();
    pin_registers(s);
    release();
    weigh(s, t, factor);
    pack(s);
  }

  HEDDLE_DEVICE void next_tile(int t) {
    float s[kBlocks][4], factor[2];
    const uint32_t k = acquire();
    begin_turn();
    score(s, k);
    accumulate(acquire());
    end_turn();
    wgmma_wait<1>();
    pin_registers(s);
    release();
    weigh(s, t, factor);
    // The weights are made before the wait, under the product: without a branch on them the assembler
    // moves the wait in front. (A sum is never below zero.)
    if (Hooks::use_softmax && state_[0].sum + state_[1].sum < 0.0f) asm volatile("trap;");
    wgmma_wait<0>();
    pin_registers(o_);
    release();
    rescale(factor);
    pack(s);
  }

  HEDDLE_DEVICE void last_values() {
    accumulate(acquire());
    wgmma_wait<0>();
    pin_registers(o_);
    release();
  }

  // S = Q K^T, under way when it returns.
  HEDDLE_DEVICE void score(float (&s)[kBlocks][4], uint32_t k) const {
    const uint32_t queries =
        QTile::by_columns(shared_address(smem_.q[uniform(q_.stage)]) + group_ * 64 * QTile::kRowBytes);
    const uint32_t keys = KvTile::by_columns(k);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i)
      Spec::multiply_keys(s, queries + QTile::column_step(i), keys + KvTile::column_step(i), i > 0);
    wgmma_commit();
  }

  // O += P V, under way when it returns.
  HEDDLE_DEVICE void accumulate(uint32_t v) {
    const uint32_t values = KvTile::by_rows(v);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) Spec::multiply_values(o_, weights_[i], values + KvTile::row_step(i), 1);
    wgmma_commit();
  }

  // Hooks, masks and softmax of tile t. O is to be multiplied with `factor`.
  HEDDLE_DEVICE void weigh(float (&s)[kBlocks][4], int t, float (&factor)[2]) {
    const int start = tile_start<kTileKv>(stream_->item, t);
    if (!stream_->all_see.contains_all(start, start + kTileKv)) {
      const RowInfo rows[2] = {row_of<Spec>(*stream_, own_row(0)), row_of<Spec>(*stream_, own_row(1))};
      apply_variant<true>(s, rows, state_, start, p_.sm_scale, hooks_);
    } else if constexpr (kChangesEveryLogit<Hooks>) {
      const RowInfo rows[2] = {row_of<Spec>(*stream_, own_row(0)), row_of<Spec>(*stream_, own_row(1))};
      apply_variant<false>(s, rows, state_, start, p_.sm_scale, hooks_);
    }
    if constexpr (Hooks::use_softmax) update_softmax(s, state_, factor, logit_to_log2<Hooks>(p_.sm_scale));
  }

  HEDDLE_DEVICE void rescale(const float (&factor)[2]) {
    if constexpr (Hooks::use_softmax) {
      // Once the maxima have settled most tiles change none of them.
      if (!__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
      for (int block = 0; block < kOutBlocks; ++block)
        for (int e = 0; e < 4; ++e) o_[block][e] *= factor[e / 2];
    }
  }

  HEDDLE_DEVICE void pack(const float (&s)[kBlocks][4]) {
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) pack_weights<Spec::kType>(weights_[i], s[2 * i], s[2 * i + 1]);
  }

  // Row of the tile that half `half` of this thread's accumulators belongs to.
  static HEDDLE_DEVICE int own_row(int half) { return warp_index() * 16 + half * 8 + lane_index() / 4; }

  // --- results ----------------------------------------------------------------------------------

  HEDDLE_DEVICE void finish() {
    const AppendOutput<Spec, Hooks> output(p_, hooks_, stream_->mask, stream_->item, stream_->kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) output.finish(o_, half, own_row(half), state_[half]);
    if (stream_->item.join == 0) return;
    named_barrier_sync(kConsumerBarrier, kThreads);
    empty_lse<Spec>(p_, stream_->item, kThreads);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  const int group_;
  const AppendStream* stream_ = nullptr;
  int stream_number_ = 0;
  RingPlace<Smem::kStages> ring_;
  RingPlace<Smem::kQBuffers> q_;
  int released_ = 0;
  float o_[kOutBlocks][4];
  RowState state_[2];
  uint32_t weights_[kKeySteps][4];
};

template <class Spec, class Hooks>
class AppendSm90 {
  using Smem = AppendSm90Smem<Spec>;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kConsumers = kGroups * kWarpgroupSize;
  // Registers a thread once the roles are known; together no more than the CTA starts with.
  static constexpr bool kTransforms =
      Hooks::has_query_transform || Hooks::has_key_transform || Hooks::has_value_transform;
  static constexpr bool kWideLoader = kGroups == 2 && (kTransforms || Spec::kHeadDim <= 128);
  static constexpr int kLoaderRegisters = kWideLoader ? 72 : 56;
  static constexpr int kConsumerRegisters = kGroups == 3 ? 152 : kWideLoader ? 216 : 224;
  static_assert(kGroups == 2 || kGroups == 3, "two or three consumer warpgroups");
  static_assert(Spec::kTile.warps == (kGroups + 1) * kWarpgroupWarps, "and one producer");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE AppendSm90(const AttentionParams& params, const Hooks& hooks, const TensorMaps& maps, Smem& smem)
      : p_(params), hooks_(hooks), maps_(maps), smem_(smem) {}

  HEDDLE_DEVICE void run() {
    const bool has_work = p_.cta_begin[blockIdx.x] < p_.cta_begin[blockIdx.x + 1];
    if (threadIdx.x == 0) init_barriers();
    if (threadIdx.x == kConsumers) {
      prefetch_map(maps_.q);
      prefetch_map(maps_.k);
      prefetch_map(maps_.v);
    }
    // What has been read so far is the plan, which no kernel in front of this one writes.
    release_successor();
    wait_for_predecessor();
    if (!has_work) return;
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
      give_registers_back<kLoaderRegisters>();
      AppendSm90Loader<Spec, Hooks>(p_, hooks_, maps_, smem_).run();
    } else {
      take_registers<kConsumerRegisters>();
      AppendSm90Consumer<Spec, Hooks>(p_, hooks_, smem_).run();
    }
  }

 private:
  HEDDLE_DEVICE void init_barriers() {
    for (int i = 0; i < Smem::kQBuffers; ++i) {
      barrier_init(&smem_.q_full[i], kWarpgroupWarps + 1);  // the rows, and the record
      barrier_init(&smem_.q_empty[i], kGroups * kWarpgroupWarps);
    }
    for (int i = 0; i < Smem::kStages; ++i) {
      barrier_init(&smem_.full[i], kWarpgroupWarps);
      barrier_init(&smem_.empty[i], kGroups * kWarpgroupWarps);
    }
    barrier_init_fence();
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const TensorMaps& maps_;
  Smem& smem_;
};

}  // namespace heddle
