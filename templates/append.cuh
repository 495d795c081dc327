// Append on mma.sync (sm_80 and later): any qo_len; FlashAttention-2's loop over a work list.
//
// The query tile's rows are packed (token, head in group), so a K/V tile is read once a group. Each
// warp owns kTile.rows / warps rows (one or two m16 fragments) and all keys of a tile; K and V are
// double-buffered with cp.async by all threads, one CTA barrier a tile. The rows of a tile are
// looked up one tile ahead, once a row, and their offsets pass through shared memory. Nothing is prefetched across work items: a cursor that runs
// ahead costs 20 registers, which this kernel does not have.
//
// Ladder, TFLOP/s on an H200 (2026-11-29; prefill_1x16k_ragged, bf16, D = 128, 32/8 heads):
//   200   logits of 32 keys at once, page ids looked up by every copying thread
//   217   64 keys at once (ncu: tensor pipe 33 %, 1660 instructions a warp and tile, no spills)
//   273   row offsets computed once a row and passed through shared memory, rows placed only for
//         masked tiles: 29 % fewer instructions (2.47e9 against 3.49e9); no spills
//   287   the same with Q K^T fully unrolled, but 4 bytes spill: not used
// Slower: 256 rows in one CTA of 8 warps 270 to 275, 16 rows a warp 215 (64 rows) and 245 (128 rows).
//
// shared memory:  Q rows x D | 2 x (K kv x D, V kv x D) | row offsets 2 x 2 x kv
#pragma once

#include "templates/append_output.cuh"
#include "templates/transform.cuh"

namespace heddle {

template <class Spec>
struct AppendSmem {
  using QkTile = SmemTile<Spec::kHeadDim>;
  using VTile = SmemTile<Spec::kHeadDimVo>;
  alignas(128) uint8_t q[Spec::kTile.rows * QkTile::kRowBytes];
  struct Stage {
    alignas(128) uint8_t k[Spec::kTile.kv * QkTile::kRowBytes];
    alignas(128) uint8_t v[Spec::kTile.kv * VTile::kRowBytes];
  };
  Stage stage[2];
  int64_t row_offset[2][2][Spec::kTile.kv];  // of K, of V; elements
  int row_id[2 * Spec::kTile.kv];  // page ids of the next tile, each read by the thread that asked
  // What is being worked on. It is uniform and rarely read, so it stays out of the registers.
  MaskBounds mask;
  WorkItem item;
  KeyRange all_see, some_see;
  int kv_head, items_left;
};

template <class Spec, class Hooks>
class Append {
  using Smem = AppendSmem<Spec>;
  using QkTile = typename Smem::QkTile;
  using VTile = typename Smem::VTile;
  static constexpr int kSteps = QkTile::kColumns / 16, kOutSteps = VTile::kColumns / 16;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kBlocks = kTileKv / 8;
  static constexpr int kFragments = Spec::kTile.rows / Spec::kTile.warps / 16;
  // Two fragments of 128 columns leave no register to load operands ahead (full unrolling gains 5 %
  // on an H200, but spills).
  static constexpr int kScoreUnroll = kFragments == 2 && QkTile::kColumns >= 128 ? 1 : kSteps;
  static constexpr int kThreads = Spec::kTile.warps * kWarpSize;
  using Type = Element<Spec::kType>;
  using Address = KvAddress<Spec::kPageSize>;
  static_assert(kFragments * 16 * Spec::kTile.warps == Spec::kTile.rows, "rows are whole fragments");
  static_assert(2 * kTileKv <= kThreads, "one thread looks up one row");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE Append(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem) {}

  HEDDLE_DEVICE void run() {
    const int cta_items = work_list().end - work_list().begin;
    // What has been read so far is the plan, which no kernel in front of this one writes.
    release_successor();
    wait_for_predecessor();
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
  // Built anew where it is needed, for the same reason as above.
  HEDDLE_DEVICE WorkList work_list() const { return WorkList(p_, Pipeline::append); }

  // --- loading ------------------------------------------------------------------------------

  // Half of the threads look up where K rows lie, half where V rows do: thread `row` of its half.
  static HEDDLE_DEVICE bool looks_up_keys() { return threadIdx.x < kTileKv; }

  // Page id of this thread's row of tile t. Keys that no row of the query tile sees are not read at all.
  HEDDLE_DEVICE void fetch_row_id(int t) {
    if (Spec::kPageSize == 0 || t >= smem_.item.tile_end) return;
    if (threadIdx.x >= 2 * kTileKv) return;
    const int kv_pos = tile_start<kTileKv>(smem_.item, t) + threadIdx.x % kTileKv;
    if (smem_.some_see.contains(kv_pos))
      cp_async_4(shared_address(&smem_.row_id[threadIdx.x]),
                 p_.kv_indices + smem_.item.kv_offset + kv_pos / max_of(Spec::kPageSize, 1));
  }
  HEDDLE_DEVICE void publish_row_offset(int t) {
    if (threadIdx.x >= 2 * kTileKv || t >= smem_.item.tile_end) return;
    const int row = threadIdx.x % kTileKv;
    const int kv_pos = tile_start<kTileKv>(smem_.item, t) + row;
    const int row_id = Spec::kPageSize == 0 ? 0 : smem_.row_id[threadIdx.x];
    int64_t offset;
    if (looks_up_keys())
      offset = Address::k_offset(p_, smem_.item.kv_offset, row_id, kv_pos) + smem_.kv_head * p_.k_head_stride;
    else
      offset = Address::v_offset(p_, smem_.item.kv_offset, row_id, kv_pos) + smem_.kv_head * p_.v_head_stride;
    smem_.row_offset[t & 1][!looks_up_keys()][row] = smem_.some_see.contains(kv_pos) ? offset : kNotSeen;
  }

  // Starts the copy of tile t, whose row offsets must be visible. Always one group.
  HEDDLE_DEVICE void load_tile(int t) {
    if (t < smem_.item.tile_end) {
      auto& stage = smem_.stage[t & 1];
      copy_rows<QkTile>(shared_address(stage.k), static_cast<const uint16_t*>(p_.k), smem_.row_offset[t & 1][0]);
      copy_rows<VTile>(shared_address(stage.v), static_cast<const uint16_t*>(p_.v), smem_.row_offset[t & 1][1]);
    }
    cp_async_commit();
  }

  template <class Tile>
  HEDDLE_DEVICE void copy_rows(uint32_t tile, const uint16_t* base, const int64_t (&offsets)[kTileKv]) const {
    constexpr int kRowStep = kThreads / Tile::kChunks;
    // Where a thread's rows are a multiple of 8 apart they share one chunk and one swizzle.
    if constexpr (kThreads % Tile::kChunks == 0 && kRowStep % 8 == 0 && kTileKv % kRowStep == 0) {
      const int row = threadIdx.x / Tile::kChunks, chunk = threadIdx.x % Tile::kChunks;
      const uint32_t to = tile + Tile::chunk_offset(row, chunk);
#pragma unroll
      for (int i = 0; i < kTileKv / kRowStep; ++i)
        copy_chunk<Tile>(to + i * kRowStep * Tile::kRowBytes, base, chunk, offsets[row + i * kRowStep]);
    } else {
#pragma unroll
      for (int i = 0; i < (kTileKv * Tile::kChunks + kThreads - 1) / kThreads; ++i) {
        const int index = i * kThreads + threadIdx.x;
        const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
        if (kTileKv * Tile::kChunks % kThreads != 0 && row >= kTileKv) continue;
        copy_chunk<Tile>(tile + Tile::chunk_offset(row, chunk), base, chunk, offsets[row]);
      }
    }
  }

  template <class Tile>
  static HEDDLE_DEVICE void copy_chunk(uint32_t to, const uint16_t* base, int chunk, int64_t offset) {
    const bool seen = static_cast<int>(offset >> 32) != static_cast<int>(kNotSeen >> 32);
    cp_async_16(to, base + chunk * kChunkElements + (seen ? offset : 0), seen && Tile::has_chunk(chunk));
  }

  HEDDLE_DEVICE int own_row(int fragment) const { return (warp_index() * kFragments + fragment) * 16; }

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
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int block = 0; block < kOutSteps * 2; ++block)
        for (int e = 0; e < 4; ++e) o_[f][block][e] = 0.0f;
      for (int half = 0; half < 2; ++half) state_[f][half] = empty_row_state();
    }
  }

  HEDDLE_DEVICE void start_loading() {
    fetch_row_id(smem_.item.tile_begin);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // all are done with the stages and offsets of the previous head
    publish_row_offset(smem_.item.tile_begin);
    fetch_row_id(smem_.item.tile_begin + 1);
    __syncthreads();
    load_tile(smem_.item.tile_begin);
  }

  // Each warp fills its own rows, so that a warp barrier is enough.
  HEDDLE_DEVICE void load_q() {
    constexpr int kRows = kFragments * 16;
    constexpr int kParts = Hooks::has_query_transform ? QkTile::kColumns / 2 : QkTile::kChunks;
    __syncwarp();
    for (int i = lane_index(); i < kRows * kParts; i += kWarpSize) {
      const int row = own_row(0) + i / kParts, part = i % kParts;
      const HookContext c =
          row_info<Spec::kGroup>(smem_.mask, smem_.item, smem_.kv_head, row).context;
      const uint16_t* source =
          static_cast<const uint16_t*>(p_.q) + c.q_row * p_.q_row_stride + c.qo_head * p_.q_head_stride;
      if constexpr (Hooks::has_query_transform)
        *reinterpret_cast<uint32_t*>(smem_.q + QkTile::element_offset(row, part * 2)) =
            QkTile::has_chunk(part * 2 / kChunkElements) ? load_q_pair<Spec>(source, part * 2, c, hooks_) : 0;
      else
        *reinterpret_cast<uint4*>(smem_.q + QkTile::chunk_offset(row, part)) =
            QkTile::has_chunk(part) ? *reinterpret_cast<const uint4*>(source + part * kChunkElements) : uint4{};
    }
    __syncwarp();
  }

  HEDDLE_DEVICE void process_tile(int t) {
    cp_async_wait<0>();
    publish_row_offset(t + 1);
    __syncthreads();  // the tile has landed for all, all are done with the other stage, offsets are visible
    fetch_row_id(t + 2);
    load_tile(t + 1);
    auto& stage = smem_.stage[t & 1];
    if constexpr (Hooks::has_key_transform || Hooks::has_value_transform)
      transform_stage(stage, tile_start<kTileKv>(smem_.item, t));
    float s[kFragments][kBlocks][4] = {};
    score(s, shared_address(stage.k));
#pragma unroll
    for (int f = 0; f < kFragments; ++f) weigh(s[f], f, t);
    accumulate(s, shared_address(stage.v));
  }

  HEDDLE_DEVICE void transform_stage(typename Smem::Stage& stage, int start) {
    const HookContext context = {smem_.item.request, smem_.kv_head * Spec::kGroup, smem_.kv_head, -1, -1, -1,
                                 smem_.item.qo_len, smem_.item.kv_len};
    const LandedKeys keys{kTileKv, start, smem_.some_see.contains_all(start, start + kTileKv),
                          [&](int row) { return smem_.some_see.contains(start + row); }};
    if constexpr (Hooks::has_key_transform)
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
  HEDDLE_DEVICE void weigh(float (&s)[kBlocks][4], int f, int t) {
    const int start = tile_start<kTileKv>(smem_.item, t);
    // Rows are placed only where somebody asks: that is as much work as the softmax itself.
    if (!smem_.all_see.contains_all(start, start + kTileKv)) {
      const RowInfo rows[2] = {fragment_row<true>(f, 0), fragment_row<true>(f, 1)};
      apply_variant<true>(s, rows, state_[f], start, p_.sm_scale, hooks_);
    } else if constexpr (kChangesEveryLogit<Hooks>) {
      const RowInfo rows[2] = {fragment_row<false>(f, 0), fragment_row<false>(f, 1)};
      apply_variant<false>(s, rows, state_[f], start, p_.sm_scale, hooks_);
    }
    if constexpr (Hooks::use_softmax) {
      float factor[2];
      update_softmax(s, state_[f], factor, logit_to_log2<Hooks>(p_.sm_scale));
      // Once the maxima have settled most tiles change none of them.
      if (!__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
      for (int block = 0; block < kOutSteps * 2; ++block)
        for (int e = 0; e < 4; ++e) o_[f][block][e] *= factor[e / 2];
    }
  }

  template <bool kMasked>
  HEDDLE_DEVICE RowInfo fragment_row(int f, int half) const {
    RowInfo info = row_info<Spec::kGroup>(smem_.mask, smem_.item, smem_.kv_head,
                                          own_row(f) + half * 8 + lane_index() / 4);
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
#pragma unroll
      for (int half = 0; half < 2; ++half)
        output.finish(o_[f], half, own_row(f) + half * 8 + lane_index() / 4, state_[f][half]);
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
