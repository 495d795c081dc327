// Decode: group * qo_len <= 16 rows against a long KV, limited by the bytes of K and V.
//
// The heads of a group (and its few tokens) are the 16 rows of an m16n8k16 tile. Warps share no
// keys: each owns 16 keys of every KV tile, loads just those with cp.async into its own stages,
// and keeps its own max, sum and accumulators. So the main loop has no CTA barrier, and warps drift
// apart, which keeps loads in flight. At the end of a (work item, kv head) the warps' states meet in
// shared memory, each in its warp's free stage. The load cursor runs `stages - 1` tiles ahead, across
// items; the page ids of a tile are read one tile before its rows, and q rides with its first tile.
//
// shared memory:  stages x warps x (K 16 x D, V 16 x D) | stages x Q 16 x D | states 2 x warps x 16
//
// Ladder, us on an H200 (2026-11-29; bf16, D = 128, 32/8 heads, page 16, ragged order of pages):
//   decode_b64_4k   b1_1k   b1_8k
//   257             9.3     18.8    warp-private stages (4 warps, 3 stages, 2 CTAs an SM), merge by the
//                                   last arriver; ncu: DRAM 88 % busy, issue slots 35 %
//   253             8.6     16.7    + programmatic launch, merge with 16 loads under way
//   257             8.5     16.9    another host (read 4.57 instead of 4.69 TB/s), 8 loads, smaller code
//   261             8.9     16.9    the same host; copies unrolled by 2, merge rolled: compile 0.48 to 0.41 s
// Tried and slower: 8 warps in one CTA 3 stages 262, 4 stages in a smaller CTA (x1) 280, 3 warps 258,
// 2 warps x 4 CTAs 261 (but best at D = 64: 131 against 142), 6 warps 345.
// Tried without gain: the last 6, 12 or 20 % of the work in small shares that CTAs draw from a counter
// (b64_4k 260 static, 264 to 266 drawn, in one run). So the tail is not what is missing: between b64_4k
// and its four times longer MHA twin the time grows at 0.96 of the read ceiling, and about 10 us a
// launch come on top.
#pragma once

#include "templates/merge.cuh"
#include "templates/transform.cuh"

namespace heddle {

inline constexpr int kWarpKeys = 16;
inline constexpr int kDecodeRows = 16;

template <class Spec>
struct DecodeSmem {
  static constexpr int kWarps = Spec::kTile.warps;
  static constexpr int kRowsBytes = kWarpKeys * Spec::kHeadDim * 2;
  // Between tiles one stage of a warp is free; at the end of a head it holds 16 x D sums, f32.
  struct WarpStage {
    alignas(128) uint8_t k[kRowsBytes];
    alignas(128) uint8_t v[kRowsBytes];
  };
  WarpStage stage[Spec::kTile.stages][kWarps];
  alignas(128) uint8_t q[Spec::kTile.stages][kRowsBytes];  // of as many heads as can be under way
  float max2[kWarps][kDecodeRows];
  float sum[kWarps][kDecodeRows];
};

// One warp's registers for a (work item, kv head).
template <class Spec>
struct DecodeState {
  float o[Spec::kHeadDim / 8][4];
  RowState row[2];
  RowInfo info[2];
};

template <class Spec, class Hooks>
class Decode {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kPageSize = Spec::kPageSize;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kStages = Spec::kTile.stages;
  static constexpr int kWarps = Spec::kTile.warps;
  static constexpr int kThreads = kWarps * kWarpSize;
  // A warp's 16 keys lie in one page, or in a row when ragged: one address for all of them.
  static constexpr bool kOneRun = kPageSize % kWarpKeys == 0;
  using Tile = SmemTile<kHeadDim>;
  using Type = Element<Spec::kType>;
  using Smem = DecodeSmem<Spec>;
  using Address = KvAddress<kPageSize>;
  using Cursor = LoadCursor<kTileKv, Spec::kGroup>;
  static_assert(kTileKv == kWarps * kWarpKeys, "every warp owns 16 keys of a KV tile");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE Decode(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), work_(params, Pipeline::decode), cursor_(work_) {}

  HEDDLE_DEVICE void run() {
    // What has been read so far is the plan, which no kernel in front of this one writes.
    release_successor();
    prefetch_row_ids();
    wait_for_predecessor();
    if (work_.begin == work_.end) return;
    fetch_row_id();
    for (int i = 0; i < kStages - 1; ++i) load_tile();
    for (int i = work_.begin; i < work_.end; ++i) {
      const WorkItem item = work_.items[i];
      for (int kv_head = item.kv_head_begin; kv_head < item.kv_head_end; ++kv_head) {
        begin_head(item, kv_head);
        for (int t = item.tile_begin; t < item.tile_end; ++t) process_tile(item, t);
        finish_head(item);
      }
    }
    cp_async_wait<0>();
  }

 private:
  // --- loading ------------------------------------------------------------------------------

  HEDDLE_DEVICE int own_key(int start) const { return start + warp_index() * kWarpKeys; }

  // The page ids of the first tiles are on their way while the kernel in front still runs.
  HEDDLE_DEVICE void prefetch_row_ids() const {
    if (kPageSize == 0 || cursor_.done()) return;
    constexpr int kLineIds = 32;
    constexpr int kFirstIds = kStages * kTileKv / max_of(kPageSize, 1);
    const WorkItem& item = cursor_.item();
    const int id = cursor_.start() / max_of(kPageSize, 1) + static_cast<int>(threadIdx.x) * kLineIds;
    if (static_cast<int>(threadIdx.x) <= kFirstIds / kLineIds && id <= (item.kv_len - 1) / max_of(kPageSize, 1))
      prefetch_l2(p_.kv_indices + item.kv_offset + id);
  }

  // The page of this warp's 16 keys in the cursor's tile, or of this lane's (lanes 16 to 31 repeat).
  HEDDLE_DEVICE void fetch_row_id() {
    if (cursor_.done()) return;
    const int first = own_key(cursor_.start());
    if constexpr (kOneRun) {
      row_id_ = Address::row_id(p_, cursor_.item().kv_offset, first, cursor_.seen().contains_some(first, first + kWarpKeys));
    } else {
      const int kv_pos = first + lane_index() % kWarpKeys;
      row_id_ = Address::row_id(p_, cursor_.item().kv_offset, kv_pos, cursor_.seen().contains(kv_pos));
    }
  }

  // Starts the copy of the cursor's tile into the next stage and moves on. Always one group.
  HEDDLE_DEVICE void load_tile() {
    if (!cursor_.done()) {
      if (!Hooks::has_query_transform && cursor_.begins_head()) load_q();
      copy_rows(own_key(cursor_.start()));
      cursor_.advance();
      fetch_row_id();
    }
    load_stage_ = load_stage_ + 1 == kStages ? 0 : load_stage_ + 1;
    cp_async_commit();
  }

  // This warp's 16 rows of K and of V. Rows that nobody sees are not read; zeros stand for them.
  HEDDLE_DEVICE void copy_rows(int first) const {
    const uint32_t k_to = shared_address(free_stage().k), v_to = shared_address(free_stage().v);
    const int64_t kv_offset = cursor_.item().kv_offset;
    const auto* k = static_cast<const uint16_t*>(p_.k) + cursor_.kv_head() * p_.k_head_stride;
    const auto* v = static_cast<const uint16_t*>(p_.v) + cursor_.kv_head() * p_.v_head_stride;
    if constexpr (kOneRun) {
      k += Address::k_offset(p_, kv_offset, row_id_, first);
      v += Address::v_offset(p_, kv_offset, row_id_, first);
    }
    const bool all = cursor_.seen().contains_all(first, first + kWarpKeys);
#pragma unroll
    for (int i = 0; i < kWarpKeys * Tile::kChunks / kWarpSize; ++i) {
      const int index = i * kWarpSize + lane_index();
      const int row = index / Tile::kChunks, column = index % Tile::kChunks * kChunkElements;
      const bool visible = all || cursor_.seen().contains(first + row);
      int64_t k_row = row * p_.k_row_stride, v_row = row * p_.v_row_stride;
      if constexpr (!kOneRun) {
        const int id = __shfl_sync(kFullMask, row_id_, row);
        k_row = Address::k_offset(p_, kv_offset, id, first + row);
        v_row = Address::v_offset(p_, kv_offset, id, first + row);
      }
      const uint32_t to = Tile::chunk_offset(row, index % Tile::kChunks);
      cp_async_16(k_to + to, k + k_row + column, visible);
      cp_async_16(v_to + to, v + v_row + column, visible);
    }
  }

  // All threads together; the first tile's barrier makes it visible.
  HEDDLE_DEVICE void load_q() {
    const WorkItem& item = cursor_.item();
    uint8_t* to = next_q(load_q_);
    for (int i = threadIdx.x; i < item.num_rows * Tile::kChunks; i += kThreads) {
      const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
      cp_async_16(shared_address(to + Tile::chunk_offset(row, chunk)),
                  q_row(item, cursor_.kv_head(), row) + chunk * kChunkElements, true);
    }
  }

  HEDDLE_DEVICE const uint16_t* q_row(const WorkItem& item, int kv_head, int row) const {
    const int packed = item.row_begin + row;
    return static_cast<const uint16_t*>(p_.q) + (item.qo_begin + packed / Spec::kGroup) * p_.q_row_stride +
           (kv_head * Spec::kGroup + packed % Spec::kGroup) * p_.q_head_stride;
  }

  // The next of the q buffers that `counter` steps through.
  HEDDLE_DEVICE uint8_t* next_q(int& counter) {
    counter = counter + 1 == kStages ? 0 : counter + 1;
    return smem_.q[counter];
  }

  // Between tiles: the one that is neither loading nor waiting to be computed.
  HEDDLE_DEVICE typename Smem::WarpStage& free_stage() const { return smem_.stage[load_stage_][warp_index()]; }

  // --- one (work item, kv head) -------------------------------------------------------------

  HEDDLE_DEVICE void begin_head(const WorkItem& item, int kv_head) {
    const MaskBounds mask = work_.header->mask;
    const int row = lane_index() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state_.info[half] = row_info<Spec::kGroup>(mask, item, kv_head, row + half * 8);
      state_.row[half] = empty_row_state();
    }
    all_see_ = seen_by_all<Spec::kGroup>(mask, item);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) state_.o[block][e] = 0.0f;
    if (item.tile_begin == item.tile_end) return;
    q_ = next_q(compute_q_);
    if constexpr (Hooks::has_query_transform) transform_q(item, kv_head);
  }

  // All threads; the first tile's barrier makes it visible.
  HEDDLE_DEVICE void transform_q(const WorkItem& item, int kv_head) {
    for (int i = threadIdx.x; i < item.num_rows * (kHeadDim / 2); i += kThreads) {
      const int row = i / (kHeadDim / 2), dim = i % (kHeadDim / 2) * 2;
      const HookContext c = row_info<Spec::kGroup>(work_.header->mask, item, kv_head, row).context;
      *reinterpret_cast<uint32_t*>(q_ + Tile::element_offset(row, dim)) =
          load_q_pair<Spec>(q_row(item, kv_head, row), dim, c, hooks_);
    }
  }

  HEDDLE_DEVICE void process_tile(const WorkItem& item, int t) {
    cp_async_wait<kStages - 2>();
    // This stage has landed for all lanes, and all are done with the one to refill; q for all warps.
    if (t == item.tile_begin)
      __syncthreads();
    else
      __syncwarp();
    load_tile();
    auto& stage = smem_.stage[compute_stage_][warp_index()];
    compute_stage_ = compute_stage_ + 1 == kStages ? 0 : compute_stage_ + 1;
    const int start = tile_start<kTileKv>(item, t);
    const int first = own_key(start);
    if constexpr (Hooks::has_key_transform || Hooks::has_value_transform) transform_stage(stage, item, first);
    float s[2][4] = {};
    score(s, shared_address(stage.k));
    if (all_see_.contains_all(start, start + kTileKv))
      apply_variant<false>(s, state_.info, state_.row, first, p_.sm_scale, hooks_);
    else
      apply_variant<true>(s, state_.info, state_.row, first, p_.sm_scale, hooks_);
    if constexpr (Hooks::use_softmax) rescale(s);
    accumulate(s, shared_address(stage.v));
  }

  HEDDLE_DEVICE void transform_stage(typename Smem::WarpStage& stage, const WorkItem& item, int first) {
    const KeyRange seen = seen_by_some<Spec::kGroup>(work_.header->mask, item);
    const int kv_head = state_.info[0].context.kv_head;
    const HookContext context = {item.request, kv_head * Spec::kGroup, kv_head, -1, -1, -1, item.qo_len, item.kv_len};
    transform_kv<Spec>(stage.k, stage.v, kWarpKeys, lane_index(), kWarpSize, context, hooks_,
                       [&](int row) { return seen.contains(first + row) ? first + row : -1; });
    __syncwarp();
  }

  // S = Q K^T over this warp's 16 keys.
  HEDDLE_DEVICE void score(float (&s)[2][4], uint32_t k) const {
    const auto queries = Tile::a_reader(shared_address(q_));
    const auto keys = Tile::b_reader(k);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4], b[4];
      ldmatrix_x4(a, queries.at(0, step));
      ldmatrix_x4(b, keys.at(0, step));
      Type::mma(s[0], a, b[0], b[1]);
      Type::mma(s[1], a, b[2], b[3]);
    }
  }

  HEDDLE_DEVICE void rescale(float (&s)[2][4]) {
    float factor[2];
    update_softmax(s, state_.row, factor, logit_to_log2<Hooks>(p_.sm_scale));
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) state_.o[block][e] *= factor[e / 2];
  }

  // O += P V.
  HEDDLE_DEVICE void accumulate(const float (&s)[2][4], uint32_t v) {
    const auto values = Tile::b_trans_reader(v);
    uint32_t a[4];
    pack_weights<Spec::kType>(a, s[0], s[1]);
#pragma unroll
    for (int pair = 0; pair < kSteps; ++pair) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, values.at(0, pair));
      Type::mma(state_.o[pair * 2], a, b[0], b[1]);
      Type::mma(state_.o[pair * 2 + 1], a, b[2], b[3]);
    }
  }

  // --- the warps' states meet ---------------------------------------------------------------

  HEDDLE_DEVICE void finish_head(const WorkItem& item) {
    share_states(item);
    __syncthreads();
    constexpr int kColumns = kHeadDim / 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < item.num_rows * kColumns; i += kThreads)
      finish_columns(item, i / kColumns, i % kColumns * 4);
    __syncthreads();  // the stages are free again
    if (item.join > 0) empty_lse<Spec>(p_, item, blockDim.x);
  }

  // Moved so that the four rows of a half warp's float2 stores hit other banks.
  static HEDDLE_DEVICE int sum_index(int row, int column) {
    const int moved = kHeadDim % 32 == 0 ? column ^ (row & 3) * 8 : column ^ (row & 1) * 8;
    return row * kHeadDim + moved;
  }
  HEDDLE_DEVICE float* sums_of(int warp) const { return reinterpret_cast<float*>(smem_.stage[load_stage_][warp].k); }

  HEDDLE_DEVICE void share_states(const WorkItem& item) {
    float* sums = sums_of(warp_index());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_index() / 4 + half * 8;
      const float sum = quad_sum(state_.row[half].sum);
      if (row >= item.num_rows) continue;
      if (lane_index() % 4 == 0) {
        smem_.max2[warp_index()][row] = state_.row[half].max2;
        smem_.sum[warp_index()][row] = sum;
      }
#pragma unroll
      for (int block = 0; block < kHeadDim / 8; ++block)
        *reinterpret_cast<float2*>(sums + sum_index(row, block * 8 + lane_index() % 4 * 2)) = {
            state_.o[block][half * 2], state_.o[block][half * 2 + 1]};
    }
  }

  // The warps' states of one row, four columns, in warp order.
  HEDDLE_DEVICE JoinedState<Hooks> sum_warps(int row, int column) const {
    JoinedState<Hooks> state;
    if constexpr (Hooks::use_softmax)
      for (int w = 0; w < kWarps; ++w) state.max2 = fmaxf(state.max2, smem_.max2[w][row]);
    const float base = state.max2 == negative_infinity() ? 0.0f : state.max2;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = Hooks::use_softmax ? exp2_approx(smem_.max2[w][row] - base) : 1.0f;
      if constexpr (Hooks::use_softmax || kCountsKeys<Hooks>) state.sum += smem_.sum[w][row] * factor;
      state.o = state.o + *reinterpret_cast<const float4*>(sums_of(w) + sum_index(row, column)) * factor;
    }
    if constexpr (!Hooks::use_softmax && !kCountsKeys<Hooks>) state.sum = 1.0f;
    return state;
  }

  // Publishes a piece's columns, or writes the output, the other pieces' columns joined.
  HEDDLE_DEVICE void finish_columns(const WorkItem& item, int row, int column) {
    JoinedState<Hooks> state = sum_warps(row, column);
    if (item.partial >= 0) {
      const float lse2 = slot_lse2<Hooks>(state.max2, state.sum);
      const float4 o = state.o * slot_scale<Hooks>(state.sum);
      if (item.join == 0) {
        const int64_t slot_row = int64_t(item.partial) * Spec::kTile.rows + row;
        publish(reinterpret_cast<float4*>(p_.partial_o + slot_row * kHeadDim + column), o);
        if (column == 0) publish(p_.partial_lse + slot_row, lse2);
        return;
      }
      state = {};
      add_slots<Spec>(state, p_, item, row, column);
      state.raise(lse2);
      state.add(lse2, o);
    }
    const HookContext context =
        row_info<Spec::kGroup>(work_.header->mask, item, state_.info[0].context.kv_head, row).context;
    const RowResult<Hooks> result = finish_row(state.max2, state.sum, context, hooks_);
    store_output<Spec>(p_, context, column, state.o * result.scale, result.lse, hooks_);
    if (column == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  WorkList work_;
  Cursor cursor_;
  DecodeState<Spec> state_;
  KeyRange all_see_;
  uint8_t* q_ = nullptr;
  int row_id_ = 0;
  int load_stage_ = 0, compute_stage_ = 0;
  int load_q_ = 0, compute_q_ = 0;
};

}  // namespace heddle
