// Append on mma.sync (sm_80 and later): any qo_len; FlashAttention-2's loop over a work list.
//
// The query tile's rows are packed (token, head in group), so a K/V tile is read once a group. Each
// warp owns kTile.rows / warps rows (one or two m16 fragments) and all keys of a tile; K and V are
// double-buffered with cp.async by all threads, one CTA barrier a tile. The rows of a tile are looked up two tiles
// ahead, once a row, beside the last products of Q K^T, and their addresses pass through shared memory. Nothing is
// prefetched across work items.
//
// Ladder, TFLOP/s on H200s (bf16, D = 128, 32/8 heads, causal; the first two columns ragged, the last on pages of 16;
// FlashAttention 2 in torch 2.11 beside the last row: 332, 327, 270):
//   16k   4x4k  16x1k
//   200                logits of 32 keys at once, page ids looked up by every copying thread
//   217                64 keys at once (ncu: tensor pipe 33 %, 1660 instructions a warp and tile, no spills)
//   273   202   138    row offsets computed once a row and passed through shared memory, rows placed only for
//                      masked tiles: 29 % fewer instructions (2.47e9 against 3.49e9); no spills
//   294   219          all addresses of a thread's copies read before the first copy (each had waited for its own), looked
//                      up behind Q K^T and not in front of the tile's barrier, four steps of Q K^T unrolled
//   336   282   204    Q by cp.async in place of loads that were waited for one by one (7 % of 4x4k), two steps unrolled,
//                      whether a tile is whole asked once
//   344   319   224    the planner's price of an item: 4.8 tiles where it was 0.8 (the SMs were busy 87 % of 4x4k, 88 % of 16x1k)
// The same, before that row: operands of Q K^T read a step ahead, four steps at once (338, 281, 206; hooks then spill).
// D = 64, 4x4k on pages of 16: 176, 218 by what is above, 237 with tiles of 128 keys (FlashAttention 2: 282).
// Slower, before the last three rows: 256 rows in one CTA of 8 warps 270 to 275, 16 rows a warp 215 (64 rows) and 245
// (128 rows).
//
// shared memory:  Q rows x D | 2 x (K kv x D, V kv x D) | row addresses 2 x 2 x kv
#pragma once

#include "templates/append_load.cuh"
#include "templates/append_output.cuh"
#include "templates/transform.cuh"

namespace heddle {

template <class Spec, class Hooks>
class Append {
  using Smem = AppendSmem<Spec>;
  using QkTile = typename Smem::QkTile;
  using VTile = typename Smem::VTile;
  static constexpr int kSteps = QkTile::kColumns / 16, kOutSteps = VTile::kColumns / 16;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kBlocks = kTileKv / 8;
  static constexpr int kFragments = Spec::kTile.rows / Spec::kTile.warps / 16;
  // As many steps of Q K^T at once as there are registers for: ptxas spills with more, on pages or behind hooks. Tiles of
  // 32 keys are where hooks go that need the most.
  static constexpr bool kIsWide = kFragments == 2 && QkTile::kColumns >= 128;
  static constexpr int kScoreUnroll = kIsWide && kTileKv == 32 ? 1 : kIsWide || kTileKv > 64 ? 2 : kSteps;
  static constexpr int kThreads = Spec::kTile.warps * kWarpSize;
  using Type = Element<Spec::kType>;
  static_assert(kFragments * 16 * Spec::kTile.warps == Spec::kTile.rows, "rows are whole fragments");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE Append(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem) {}

  HEDDLE_DEVICE void run() {
    const int cta_items = work_list().end - work_list().begin;
    take_turn_in_front<Spec>(p_);
    if (cta_items == 0) return;
    if (threadIdx.x == 0) smem_.items_left = cta_items;
    do {
      __syncthreads();  // all are done with the previous item
      if (threadIdx.x == 0) begin_item();
      if constexpr (Spec::kRowsGiven)
        if (warp_index() == 0) take_given_ranges();
      __syncthreads();
      do {
        begin_head();
        for (int t = smem_.item.tile_begin; t < smem_.item.tile_end; ++t) process_tile(t);
        finish_head();
        __syncthreads();
        if (threadIdx.x == 0) ++smem_.kv_head;
        __syncthreads();
      } while (smem_.kv_head < smem_.item.kv_head_end);
    } while (smem_.items_left > 0);
  }

 private:
  // Built anew where they are needed: registers are for products.
  HEDDLE_DEVICE WorkList work_list() const { return WorkList(p_, Pipeline::append); }
  HEDDLE_DEVICE AppendLoad<Spec> loader() const { return AppendLoad<Spec>(p_, smem_); }

  HEDDLE_DEVICE int own_row(int fragment) const { return (warp_index() * kFragments + fragment) * 16; }

  // Opaque: rows known ahead would take registers that the products need.
  HEDDLE_DEVICE int row_of_lane(int fragment, int half) const {
    int lane_row = lane_index() / 4;
    asm volatile("" : "+r"(lane_row));
    return own_row(fragment) + half * 8 + lane_row;
  }

  // --- one (work item, kv head) -------------------------------------------------------------

  HEDDLE_DEVICE void begin_item() {
    const WorkList work = work_list();
    const WorkItem item = work.items[work.end - smem_.items_left];
    --smem_.items_left;
    const MaskBounds mask = work.header->mask;
    smem_.mask = mask;
    smem_.item = item;
    smem_.kv_head = item.kv_head_begin;
    smem_.all_see = seen_by_all<Spec::kGroup, Hooks>(mask, item);
    smem_.some_see = seen_by_some<Spec::kGroup>(mask, item);
    if constexpr (Spec::kTransformedKeys) smem_.key_row = transformed_key_row(work.header, item.request);
  }

  // The first warp together.
  HEDDLE_DEVICE void take_given_ranges() {
    __syncwarp();  // the item is the first lane's
    const KeyRange all = given_to_all<Spec::kGroup, Hooks>(plan(), smem_.item);
    const KeyRange some = given_to_some<Spec::kGroup>(plan(), smem_.item);
    if (lane_index() > 0) return;
    smem_.all_see = all;
    smem_.some_see = some;
  }
  HEDDLE_DEVICE const PlanHeader* plan() const { return reinterpret_cast<const PlanHeader*>(p_.plan); }

  HEDDLE_DEVICE void begin_head() {
    start_loading();
    load_q();
    cp_async_commit();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int block = 0; block < kOutSteps * 2; ++block)
        for (int e = 0; e < 4; ++e) o_[f][block][e] = 0.0f;
      for (int half = 0; half < 2; ++half) state_[f][half] = empty_row_state();
    }
  }

  HEDDLE_DEVICE void start_loading() {
    const AppendLoad<Spec> load = loader();
    const int first = smem_.item.tile_begin;
    load.fetch_row_ids(first);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // all are done with the stages and addresses of the previous head
    load.publish_row_addresses(first);
    load.fetch_row_ids(first + 1);
    cp_async_commit();
    cp_async_wait<0>();
    load.publish_row_addresses(first + 1);
    load.fetch_row_ids(first + 2);
    __syncthreads();
    load.load_tile(first);
  }

  // Each warp fills its own rows. Copies are under way together, and land with the first tile.
  HEDDLE_DEVICE void load_q() {
    constexpr int kRows = kFragments * 16;
    constexpr int kParts = Hooks::has_query_transform ? QkTile::kColumns / 2 : QkTile::kChunks;
#pragma unroll 4
    for (int i = lane_index(); i < kRows * kParts; i += kWarpSize) {
      const int row = own_row(0) + i / kParts, part = i % kParts;
      const HookContext c = row_info<Spec::kGroup>(smem_.mask, smem_.item, smem_.kv_head, row).context;
      const uint16_t* source =
          static_cast<const uint16_t*>(p_.q) + c.q_row * p_.q_row_stride + c.qo_head * p_.q_head_stride;
      if constexpr (Hooks::has_query_transform)
        *reinterpret_cast<uint32_t*>(smem_.q + QkTile::element_offset(row, part * 2)) =
            QkTile::has_chunk(part * 2 / kChunkElements) ? load_q_pair<Spec>(source, part * 2, c, hooks_) : 0;
      else
        cp_async_16(shared_address(smem_.q) + QkTile::chunk_offset(row, part),
                    source + (QkTile::has_chunk(part) ? part * kChunkElements : 0), QkTile::has_chunk(part));
    }
  }

  HEDDLE_DEVICE void process_tile(int t) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has landed for all, all are done with the other stage, addresses are visible
    const AppendLoad<Spec> load = loader();
    load.load_tile(t + 1);
    auto& stage = smem_.stage[t & 1];
    if (changes_stage())
      transform_stage(stage, tile_start<kTileKv>(smem_.item, t));
    const int start = tile_start<kTileKv>(smem_.item, t);
    const bool is_whole = smem_.all_see.contains_all(start, start + kTileKv);
    float s[kFragments][kBlocks][4] = {};
    score(s, shared_address(stage.k));
    load.publish_row_addresses(t + 2);  // beside the last products
    load.fetch_row_ids(t + 3);
    cp_async_commit();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) weigh(s[f], f, start, is_whole);
    accumulate(s, shared_address(stage.v));
  }

  HEDDLE_DEVICE bool changes_stage() const {
    return (Hooks::has_key_transform && !smem_.finds_keys_transformed()) || Hooks::has_value_transform;
  }
  HEDDLE_DEVICE void transform_stage(typename Smem::Stage& stage, int start) {
    const HookContext context =
        key_context(smem_.item.request, smem_.item.qo_len, smem_.item.kv_len, -1, smem_.kv_head, Spec::kGroup);
    const LandedKeys keys{kTileKv, start, smem_.some_see.contains_all(start, start + kTileKv),
                          [&](int row) { return smem_.some_see.contains(start + row); }};
    if constexpr (Hooks::has_key_transform)
      if (!smem_.finds_keys_transformed())
        transform_keys<Spec, false, 2>(stage.k, keys, threadIdx.x, kThreads, context, hooks_);
    if constexpr (Hooks::has_value_transform)
      transform_keys<Spec, true, 2>(stage.v, keys, threadIdx.x, kThreads, context, hooks_);
    __syncthreads();
  }

  // S = Q K^T.
  HEDDLE_DEVICE void score(float (&s)[kFragments][kBlocks][4], uint32_t k) const {
    const auto q = QkTile::a_reader(shared_address(smem_.q) + own_row(0) * QkTile::kRowBytes);
    const auto keys = QkTile::b_reader(k);
#pragma unroll kScoreUnroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) ldmatrix_x4(a[f], q.at(f * 16, step));
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        uint32_t b[4];
        ldmatrix_x4(b, keys.at(pair * 16, step));
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          Type::mma(s[f][pair * 2], a[f], b[0], b[1]);
          Type::mma(s[f][pair * 2 + 1], a[f], b[2], b[3]);
        }
      }
    }
  }

  // Hooks, masks and softmax of one fragment; rescales its accumulators.
  HEDDLE_DEVICE void weigh(float (&s)[kBlocks][4], int f, int start, bool is_whole) {
    // Rows are placed only where somebody asks: that is as much work as the softmax itself.
    if (!is_whole) {
      const RowInfo rows[2] = {fragment_row<true>(f, 0), fragment_row<true>(f, 1)};
      apply_variant<true>(s, rows, state_[f], start, p_.sm_scale, hooks_);
    } else if constexpr (kChangesEveryLogit<Hooks>) {
      const RowInfo rows[2] = {fragment_row<false>(f, 0), fragment_row<false>(f, 1)};
      apply_variant<false>(s, rows, state_[f], start, p_.sm_scale, hooks_);
    }
    if constexpr (Hooks::use_softmax) {
      float factor[2];
      update_softmax<Hooks>(s, state_[f], factor, logit_to_log2<Hooks>(p_.sm_scale));
      // Once the maxima have settled most tiles change none of them.
      if (!__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
      for (int block = 0; block < kOutSteps * 2; ++block)
        for (int e = 0; e < 4; ++e) o_[f][block][e] *= factor[e / 2];
    }
  }

  template <bool kMasked>
  HEDDLE_DEVICE RowInfo fragment_row(int f, int half) const {
    RowInfo info = row_info<Spec::kGroup>(smem_.mask, smem_.item, smem_.kv_head, row_of_lane(f, half));
    if constexpr (kMasked) take_given_range<Spec>(info, plan());
    return info;
  }

  // O += P V.
  HEDDLE_DEVICE void accumulate(const float (&s)[kFragments][kBlocks][4], uint32_t v) {
    const auto values = VTile::b_trans_reader(v);
#pragma unroll
    for (int step = 0; step < kTileKv / 16; ++step) {
      uint32_t a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) pack_weights<Spec::kType>(a[f], s[f][step * 2], s[f][step * 2 + 1]);
#pragma unroll
      for (int pair = 0; pair < kOutSteps; ++pair) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, values.at(step * 16, pair));
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          Type::mma(o_[f][pair * 2], a[f], b[0], b[1]);
          Type::mma(o_[f][pair * 2 + 1], a[f], b[2], b[3]);
        }
      }
    }
  }

  // --- results ------------------------------------------------------------------------------

  HEDDLE_DEVICE void finish_head() {
    const AppendOutput<Spec, Hooks> output(p_, hooks_, smem_.mask, smem_.item, smem_.kv_head);
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
      output.finish(o_[f], {row_of_lane(f, 0), row_of_lane(f, 1)}, state_[f]);
    if (smem_.item.join == 0) return;
    __syncthreads();
    empty_lse<Spec>(p_, smem_.item, kThreads);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  float o_[kFragments][kOutSteps * 2][4];
  RowState state_[kFragments][2];
};

}  // namespace heddle
