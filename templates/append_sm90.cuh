// Append on wgmma (sm_90a): any qo_len; FlashAttention-3's schedule over a work list.
//
// A producer warpgroup (append_sm90_load.cuh) feeds a ring of K and V tiles; each consumer
// warpgroup owns 64 packed (token, head in group) rows. Within a consumer the softmax of a tile runs under the
// product P V of the tile before; between consumers, turns make the softmax of one run under the
// products of the other.
//
//   issue S(t) = Q K(t)^T | rescale O | issue O += P(t + 1) V(t + 1) | wait S | softmax -> weights | wait O | pack P(t)
//
// The last keys come first, so that under a causal mask the boundary is met once, at the start. The same
// order leads from one stream into the next: its first scores stand beside the last P V of the one
// in front.
//
// shared memory:  Q q_buffers x rows x D | ring: stages x kv x D | barriers, records
//
// Ladder, TFLOP/s on H200s (2026-11-29; bf16, 32/8 heads, causal but `full`; bf16 matmul 700 to 790 there; hosts
// differ by 3 %). The first two columns and window are ragged, the others on pages of 16:
//   16k   full  1x16k  chunk  4x4k  16x1k  d64  d256  window
//   550   601   470           425   327    368  433   562    K and V by boxes of the first warp's lanes
//   589   618   475    483    442   355    372  501   607    + items a stream ahead, Q in boxes, last keys first,
//                                                            O rescaled under S, streams overlap; d64 192 x 96
//   579   619   571    628    541   406    363  505          + K released as soon as S stands (the assembler had
//                                                            moved that behind the softmax), boxes issued by all
//                                                            four warps, copies awaited by barriers alone
// The same within 2 %: where a turn ends (after issuing P V, once S stands, before the last step of P V);
//   weights packed before or after the wait for O; streams one after the other in place of overlapped.
// Slower: a quarter or an eighth of exp2 as polynomials on the FMA pipe (16k 580 / 559, 4x4k 410 / 426);
//   pages of 16 as gathered K beside boxes of V (1x16k 559, 4x4k 525), all gathered (541, 505), boxes of whole
//   rows, 4 KB each (575, 526).
// soft_cap: 366 with four special functions a logit (exp2 twice, the reciprocals of tanh and of a division by the
//   cap), 464 with tanh.approx in place of two, whose 2^-11 is more than the contract leaves; 345 with a polynomial
//   for the reciprocal of tanh, on tiles of 128, 96 and 64 keys alike.
// Slower or the same, too: results through the query's tile and the copy engine (16x1k 402 to 444, 4x4k the same), no
//   fence where tiles came through the copy engine, 192 x 64 (16x1k 400). One body for all steps, a stream's first
//   among them, does not compile: ptxas then runs products one by one (C7512).
// ncu, 16k ragged, second line: tensor pipe 70 % busy, issue slots 39 %.
#pragma once

#include "templates/append_sm90_load.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90Consumer {
  using Smem = AppendSm90Smem<Spec>;
  using QTile = typename Smem::QTile;
  using KTile = typename Smem::KTile;
  using VTile = typename Smem::VTile;
  using Type = Element<Spec::kType>;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kBlocks = kTileKv / 8;
  static constexpr int kOutBlocks = VTile::kColumns / 8;
  static constexpr int kKeySteps = kTileKv / 16;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kThreads = kGroups * kWarpgroupSize;
  static constexpr bool kTurns = kGroups > 1;
  static constexpr bool kOverlapsStreams = Smem::kQBuffers > 1;

 public:
  HEDDLE_DEVICE AppendSm90Consumer(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), group_(uniform(threadIdx.x / kWarpgroupSize)) {}

  HEDDLE_DEVICE void run() {
    if (kTurns && group_ == kGroups - 1) end_turn();  // the first turn is group 0's
    clear_o();
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
      release(&smem_.q_empty[q_buffer()]);
      last = &stream;
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

  // Between the waits for tiles and their products: threads of the producer may have copied them.
  static HEDDLE_DEVICE void fence_tiles() { fence_async_proxy(); }

  HEDDLE_DEVICE int q_buffer() const { return number_ % Smem::kQBuffers; }

  // The next stage of the ring, filled.
  HEDDLE_DEVICE int acquire() {
    const int stage = ring_.stage;
    barrier_wait(&smem_.full[stage], ring_.parity);
    ring_.advance();
    return stage;
  }
  // The assembler moves an arrival, which nothing waits for, down to the next branch: past a softmax. (No
  // stage is below zero.)
  static HEDDLE_DEVICE void stay_here(int stage) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p trap;\n}" ::"r"(stage) : "memory");
  }
  HEDDLE_DEVICE void release(int stage) const { release(&smem_.empty[stage]); }
  static HEDDLE_DEVICE void release(const uint64_t* empty) {
    if (lane_index() == 0) barrier_arrive(empty);
  }

  // --- streams --------------------------------------------------------------------------------

  // From one stream to the next: the first scores of `stream` stand beside the last product P V of `last`,
  // and results are stored while other warpgroups are at products. Either may be missing (at the CTA's
  // begin and end, and where rows see no key): its product is then issued all the same, on whatever
  // the tiles hold, and nobody looks at it. So there is one such place in the kernel, without a
  // branch around products.
  HEDDLE_DEVICE void first_tile(const AppendStream& stream, const AppendStream* last) {
    float s[kBlocks][4];
    const bool has_scores = !stream.is_end && has_tiles(stream), has_values = last != nullptr && has_tiles(*last);
    const int v = kOverlapsStreams && has_values ? acquire() : 0, k = has_scores ? acquire() : 0;
    const uint32_t queries = queries_at(q_buffer()), keys = keys_at(k), values = values_at(v);
    fence_tiles();
    if constexpr (kOverlapsStreams) rescale();  // here and not under the scores: the assembler would wait for those
    begin_turn();
    score(s, queries, keys);
    if constexpr (kOverlapsStreams) accumulate(values);
    end_turn();
    wgmma_wait<kOverlapsStreams ? 1 : 0>();
    pin_registers(s);
    if (has_scores) release(k);
    const RowState state[2] = {state_[0], state_[1]};
    state_[0] = state_[1] = empty_row_state();
    if (has_scores) {
      apply_hooks<true>(s, stream, stream.item.tile_end - 1);  // once a stream, whether a boundary or not
      weigh(s);
    }
    if constexpr (kOverlapsStreams) {
      wgmma_wait<0>();
      pin_registers(o_);
      if (has_values) release(v);
    }
    pack(s);
    if (last != nullptr) finish(*last, state, has_values);
    clear_o();
    factor_[0] = factor_[1] = 1.0f;
  }

  // Tiles of one kind in a loop of their own: what all rows see as a whole has no mask code.
  HEDDLE_DEVICE void next_tiles(const AppendStream& stream) {
    const int begin = stream.item.tile_begin;
    const int full_begin = max_of(stream.full_begin, begin), full_end = stream.full_end;
    int t = stream.item.tile_end - 2;
    while (t >= begin) {
      for (; t < full_end && t >= full_begin; --t) next_tile<false>(stream, t);
      if (t >= begin) next_tile<true>(stream, t--);
    }
  }

  // Where one query tile is all that fits, the next one is on its way only when this is done.
  HEDDLE_DEVICE void finish_alone(const AppendStream& stream) {
    const bool has_values = has_tiles(stream);
    if (has_values) {
      const int v = acquire();
      const uint32_t values = values_at(v);
      fence_tiles();
      rescale();
      accumulate(values);
      wgmma_wait<0>();
      pin_registers(o_);
      release(v);
    }
    finish(stream, state_, has_values);
  }

  static HEDDLE_DEVICE bool has_tiles(const AppendStream& stream) {
    return stream.item.tile_begin < stream.item.tile_end;
  }

  // --- one tile -------------------------------------------------------------------------------

  template <bool kMasked>
  HEDDLE_DEVICE void next_tile(const AppendStream& stream, int t) {
    float s[kBlocks][4];
    const int k = acquire(), v = acquire();
    const uint32_t queries = queries_at(q_buffer()), keys = keys_at(k), values = values_at(v);
    fence_tiles();
    begin_turn();
    score(s, queries, keys);
    rescale();
    accumulate(values);
    end_turn();
    wgmma_wait<1>();
    pin_registers(s);
    release(k);
    stay_here(k);
    apply_hooks<kMasked>(s, stream, t);
    weigh(s);
    // The weights are made before the wait, under the product: without a branch on them the assembler
    // moves the wait in front. (A sum is never below zero.)
    if (Hooks::use_softmax && state_[0].sum + state_[1].sum < 0.0f) asm volatile("trap;");
    wgmma_wait<0>();
    pin_registers(o_);
    release(v);
    pack(s);
  }

  // --- products -----------------------------------------------------------------------------------

  // Descriptors, made before a turn begins. They are uniform as far as the assembler can see: others cost
  // four moves from registers in front of every product.
  HEDDLE_DEVICE uint32_t queries_at(int buffer) const {
    return uniform(QTile::by_columns(shared_address(smem_.q[buffer]) + group_ * 64 * QTile::kRowBytes));
  }
  HEDDLE_DEVICE uint32_t keys_at(int stage) const {
    return uniform(KTile::by_columns(shared_address(smem_.stage[stage])));
  }
  HEDDLE_DEVICE uint32_t values_at(int stage) const {
    return uniform(VTile::by_rows(shared_address(smem_.stage[stage])));
  }

  // S = Q K^T, under way when it returns.
  static HEDDLE_DEVICE void score(float (&s)[kBlocks][4], uint32_t queries, uint32_t keys) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KTile::kColumns / 16; ++i)
      Spec::multiply_keys(s, queries + QTile::column_step(i), keys + KTile::column_step(i), i > 0);
    wgmma_commit();
  }

  // O += P V, under way when it returns.
  HEDDLE_DEVICE void accumulate(uint32_t values) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) Spec::multiply_values(o_, weights_[i], values + VTile::row_step(i), 1);
    wgmma_commit();
  }

  // --- softmax ------------------------------------------------------------------------------------

  template <bool kMasked>
  HEDDLE_DEVICE void apply_hooks(float (&s)[kBlocks][4], const AppendStream& stream, int t) {
    if constexpr (kMasked || kChangesEveryLogit<Hooks>) {
      const RowInfo rows[2] = {row_of<Spec>(stream, own_row(0)), row_of<Spec>(stream, own_row(1))};
      apply_variant<kMasked>(s, rows, state_, tile_start<kTileKv>(stream.item, t), p_.sm_scale, hooks_);
    }
  }

  HEDDLE_DEVICE void weigh(float (&s)[kBlocks][4]) {
    if constexpr (Hooks::use_softmax) update_softmax(s, state_, factor_, logit_to_log2<Hooks>(p_.sm_scale));
  }

  // Brings O to the maxima of the last weights, under the scores of the next ones.
  HEDDLE_DEVICE void rescale() {
    if constexpr (Hooks::use_softmax) {
      // Once the maxima have settled most tiles change none of them.
      if (!__any_sync(kFullMask, factor_[0] != 1.0f || factor_[1] != 1.0f)) return;
#pragma unroll
      for (int block = 0; block < kOutBlocks; ++block)
        for (int e = 0; e < 4; ++e) o_[block][e] *= factor_[e / 2];
    }
  }

  HEDDLE_DEVICE void pack(const float (&s)[kBlocks][4]) {
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) pack_weights<Spec::kType>(weights_[i], s[2 * i], s[2 * i + 1]);
  }

  // Row of the tile that half `half` of this thread's accumulators belongs to.
  static HEDDLE_DEVICE int own_row(int half) { return warp_index() * 16 + half * 8 + lane_index() / 4; }

  // --- results ----------------------------------------------------------------------------------

  HEDDLE_DEVICE void finish(const AppendStream& stream, const RowState (&state)[2], bool has_values) {
    if (kOverlapsStreams && !has_values) clear_o();
    const AppendOutput<Spec, Hooks> output(p_, hooks_, stream.mask, stream.item, stream.kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) output.finish(o_, half, own_row(half), state[half]);
    if (stream.item.join == 0) return;
    named_barrier_sync(kConsumerBarrier, kThreads);
    empty_lse<Spec>(p_, stream.item, kThreads);
  }

  // In place: a plain assignment in a branch becomes a selection into as many registers again.
  HEDDLE_DEVICE void clear_o() {
#pragma unroll
    for (int block = 0; block < kOutBlocks; ++block)
      for (int e = 0; e < 4; ++e) asm volatile("mov.b32 %0, 0;" : "=f"(o_[block][e]));
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  const int group_;
  RingPlace<Smem::kStages> ring_;
  int number_ = 0;  // of the stream, as the producer counts
  float o_[kOutBlocks][4];
  RowState state_[2] = {empty_row_state(), empty_row_state()};
  float factor_[2] = {1.0f, 1.0f};  // what O is still to be multiplied by
  uint32_t weights_[kKeySteps][4] = {};
};

template <class Spec, class Hooks>
class AppendSm90 {
  using Smem = AppendSm90Smem<Spec>;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kConsumers = kGroups * kWarpgroupSize;
  // Registers a thread once the roles are known; together no more than the CTA starts with.
  static constexpr bool kTransforms =
      Hooks::has_query_transform || Hooks::has_key_transform || Hooks::has_value_transform;
  static constexpr bool kWideLoader = kGroups == 2 && kTransforms;
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
      barrier_init(&smem_.q_full[i], kWarpgroupSize + 1);  // the rows, and the record
      barrier_init(&smem_.q_empty[i], kGroups * kWarpgroupWarps);
    }
    for (int i = 0; i < Smem::kStages; ++i) {
      barrier_init(&smem_.full[i], kWarpgroupSize);
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
