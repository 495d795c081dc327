// Decode: group * qo_len <= 16 rows against a long KV, limited by the bytes of K and V.
//
// The heads of a group (and its few tokens) are the 16 rows of an m16n8k16 tile. Warps share no
// keys: each owns 16 keys of every KV tile, loads just those with cp.async into its own stages,
// and keeps its own max, sum and accumulators. So the main loop has no CTA barrier, and warps drift
// apart, which keeps loads in flight. At the end of a (work item, kv head) the warps' states meet in
// shared memory. The load cursor runs `stages - 1` tiles ahead, across items; the page ids of a tile
// are read one tile before its rows.
//
// shared memory:  stages x warps x (K 16 x D, V 16 x D) | states 2 x warps x 16
//                 | Q 16 x D during the tiles, then sums warps x 8 x D f32
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
  struct WarpStage {
    alignas(128) uint8_t k[kRowsBytes];
    alignas(128) uint8_t v[kRowsBytes];
  };
  WarpStage stage[Spec::kTile.stages][kWarps];
  float max2[kWarps][kDecodeRows];
  float sum[kWarps][kDecodeRows];
  union {
    alignas(128) uint8_t q[kRowsBytes];
    float o[kWarps][kDecodeRows / 2][Spec::kHeadDim];
    MergeSmem<kDecodeRows> merge;
  };
  int flag;
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
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kStages = Spec::kTile.stages;
  static constexpr int kWarps = Spec::kTile.warps;
  static constexpr int kThreads = kWarps * kWarpSize;
  using Tile = SmemTile<kHeadDim>;
  using Type = Element<Spec::kType>;
  using Smem = DecodeSmem<Spec>;
  using Address = KvAddress<Spec::kPageSize>;
  using Cursor = LoadCursor<kTileKv, Spec::kGroup>;
  static_assert(kTileKv == kWarps * kWarpKeys, "every warp owns 16 keys of a KV tile");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE Decode(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), work_(params.plan, Pipeline::decode), cursor_(work_) {}

  HEDDLE_DEVICE void run() {
    // What has been read so far is the plan, which no kernel in front of this one writes.
    release_successor();
    wait_for_predecessor();
    if (work_.begin == work_.end) return;
    fetch_row_id();
    int ahead = kStages - 1;  // tiles to load before the first is computed
    for (int i = work_.begin; i < work_.end; ++i) {
      const WorkItem item = work_.items[i];
      const RequestRecord request = work_.requests[item.request];
      for (int kv_head = item.kv_head_begin; kv_head < item.kv_head_end; ++kv_head) {
        begin_head(item, request, kv_head);
        for (int t = item.tile_begin - ahead; t < item.tile_end; ++t) process_tile(item, request, kv_head, t);
        ahead = 0;
        finish_head(item);
      }
    }
    cp_async_wait<0>();
  }

 private:
  // --- loading ------------------------------------------------------------------------------

  HEDDLE_DEVICE int own_key(int start) const { return start + warp_index() * kWarpKeys; }

  // The page of this lane's row in the cursor's tile (lanes 16 to 31 repeat).
  HEDDLE_DEVICE void fetch_row_id() {
    if (cursor_.done()) return;
    const int kv_pos = own_key(cursor_.start()) + lane_index() % kWarpKeys;
    row_id_ = Address::row_id(p_, cursor_.kv_offset(), kv_pos, cursor_.visible(kv_pos));
  }

  // Starts the copy of the cursor's tile into the next stage and moves on. Always one group.
  HEDDLE_DEVICE void load_tile() {
    if (!cursor_.done()) {
      const int first = own_key(cursor_.start());
      const int kv_pos = first + lane_index() % kWarpKeys;
      const int64_t head = cursor_.kv_head();
      const int64_t k = Address::k_offset(p_, cursor_.kv_offset(), row_id_, kv_pos) + head * p_.k_head_stride;
      const int64_t v = Address::v_offset(p_, cursor_.kv_offset(), row_id_, kv_pos) + head * p_.v_head_stride;
      const bool visible = cursor_.visible(kv_pos);
      copy_rows(shared_address(own_stage(load_stage_).k), p_.k, k, visible);
      copy_rows(shared_address(own_stage(load_stage_).v), p_.v, v, visible);
      cursor_.advance();
      fetch_row_id();
    }
    load_stage_ = load_stage_ + 1 == kStages ? 0 : load_stage_ + 1;
    cp_async_commit();
  }

  // 16 rows; lane r holds row r's offset (elements) and whether any query row sees it.
  HEDDLE_DEVICE void copy_rows(uint32_t shared, const void* base, int64_t offset, bool visible) const {
#pragma unroll 2  // fully unrolled: a sixth more compile time, about 1 % more speed
    for (int i = 0; i < kWarpKeys * Tile::kChunks / kWarpSize; ++i) {
      const int index = i * kWarpSize + lane_index();
      const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
      const int64_t row_offset = __shfl_sync(kFullMask, offset, row);
      const bool row_visible = __shfl_sync(kFullMask, static_cast<int>(visible), row);
      const uint16_t* source = static_cast<const uint16_t*>(base) + (row_visible ? row_offset : 0);
      cp_async_16(shared + Tile::chunk_offset(row, chunk), source + (row_visible ? chunk * kChunkElements : 0),
                  row_visible);
    }
  }

  HEDDLE_DEVICE typename Smem::WarpStage& own_stage(int stage) const {
    return smem_.stage[stage][warp_index()];
  }

  // --- one (work item, kv head) -------------------------------------------------------------

  HEDDLE_DEVICE void begin_head(const WorkItem& item, const RequestRecord& request, int kv_head) {
    const MaskBounds mask = work_.header->mask;
    const int row = lane_index() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state_.info[half] = row_info<Spec::kGroup>(mask, item, request, kv_head, row + half * 8);
      state_.row[half] = empty_row_state();
    }
    const int base = request.kv_len - request.qo_len;
    all_see_ = seen_by_all(mask, base + item.row_begin / Spec::kGroup,
                           base + (item.row_begin + item.num_rows - 1) / Spec::kGroup, request.kv_len);
    load_q(item, request, kv_head);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) state_.o[block][e] = 0.0f;
  }

  // All threads; the tiles of the previous head no longer need the space, its sums have been read.
  HEDDLE_DEVICE void load_q(const WorkItem& item, const RequestRecord& request, int kv_head) {
    constexpr int kParts = Hooks::has_query_transform ? kHeadDim / 2 : Tile::kChunks;
    for (int i = threadIdx.x; i < kDecodeRows * kParts; i += kThreads) {
      const int row = i / kParts, part = i % kParts;
      const HookContext c = row_info<Spec::kGroup>(work_.header->mask, item, request, kv_head, row).context;
      const uint16_t* source =
          static_cast<const uint16_t*>(p_.q) + c.q_row * p_.q_row_stride + c.qo_head * p_.q_head_stride;
      if constexpr (Hooks::has_query_transform)
        *reinterpret_cast<uint32_t*>(smem_.q + Tile::element_offset(row, part * 2)) =
            load_q_pair<Spec>(source, part * 2, c, hooks_);
      else
        *reinterpret_cast<uint4*>(smem_.q + Tile::chunk_offset(row, part)) =
            *reinterpret_cast<const uint4*>(source + part * kChunkElements);
    }
    __syncthreads();
  }

  HEDDLE_DEVICE void process_tile(const WorkItem& item, const RequestRecord& request, int kv_head, int t) {
    const bool only_load = t < item.tile_begin;
    if (!only_load) cp_async_wait<kStages - 2>();
    __syncwarp();  // this stage has landed for all lanes, and all are done with the one to refill
    load_tile();
    if (only_load) return;
    auto& stage = own_stage(compute_stage_);
    compute_stage_ = compute_stage_ + 1 == kStages ? 0 : compute_stage_ + 1;
    const int start = tile_start<kTileKv>(item, t);
    const int first = own_key(start);
    if constexpr (Hooks::has_key_transform || Hooks::has_value_transform)
      transform_stage(stage, item, request, kv_head, first);
    float s[2][4] = {};
    score(s, shared_address(stage.k));
    if (all_see_.contains_all(start, start + kTileKv))
      apply_variant<false>(s, state_.info, state_.row, first, p_.sm_scale, hooks_);
    else
      apply_variant<true>(s, state_.info, state_.row, first, p_.sm_scale, hooks_);
    if constexpr (Hooks::use_softmax) rescale(s);
    accumulate(s, shared_address(stage.v));
  }

  HEDDLE_DEVICE void transform_stage(typename Smem::WarpStage& stage, const WorkItem& item,
                                     const RequestRecord& request, int kv_head, int first) {
    const MaskBounds mask = work_.header->mask;
    const int base = request.kv_len - request.qo_len;
    const KeyRange seen = seen_by_some(mask, base + item.row_begin / Spec::kGroup,
                                       base + (item.row_begin + item.num_rows - 1) / Spec::kGroup,
                                       request.kv_len);
    const HookContext context = {item.request, kv_head * Spec::kGroup, kv_head, -1, -1, -1,
                                 request.qo_len, request.kv_len};
    transform_kv<Spec>(stage.k, stage.v, kWarpKeys, lane_index(), kWarpSize, context, hooks_,
                       [&](int row) { return seen.contains(first + row) ? first + row : -1; });
    __syncwarp();
  }

  // S = Q K^T over this warp's 16 keys.
  HEDDLE_DEVICE void score(float (&s)[2][4], uint32_t k) const {
    const auto queries = Tile::a_reader(shared_address(smem_.q));
    const auto keys = Tile::b_reader(k);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
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
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, values.at(0, pair));
      Type::mma(state_.o[pair * 2], a, b[0], b[1]);
      Type::mma(state_.o[pair * 2 + 1], a, b[2], b[3]);
    }
  }

  // --- the warps' states meet ---------------------------------------------------------------

  HEDDLE_DEVICE void finish_head(const WorkItem& item) {
    share_row_states();
    const int row = lane_index() / 4;
#pragma unroll 1  // one copy of the code: it is a tenth of the compile time
    for (int half = 0; half * 8 < item.num_rows; ++half) {
      const float max2 = half ? state_.row[1].max2 : state_.row[0].max2;
      const float factor = Hooks::use_softmax ? exp2_approx(max2 - finite_max(row + half * 8)) : 1.0f;
      store_half(half, factor);
      __syncthreads();
      sum_half(item, half);
      __syncthreads();
    }
    if (item.partial < 0) return;
    const int partials = work_.merges[item.merge].num_partials;
    if (arrive_last(p_, item.merge, partials, &smem_.flag)) merge_flat<Spec>(smem_.merge, p_, work_, item.merge, hooks_);
  }

  HEDDLE_DEVICE void share_row_states() {
    const int row = lane_index() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(state_.row[half].sum);
      if (lane_index() % 4 == 0) {
        smem_.max2[warp_index()][row + half * 8] = state_.row[half].max2;
        smem_.sum[warp_index()][row + half * 8] = sum;
      }
    }
    __syncthreads();
  }

  HEDDLE_DEVICE float row_max(int row) const {
    float top = smem_.max2[0][row];
    for (int w = 1; w < kWarps; ++w) top = fmaxf(top, smem_.max2[w][row]);
    return top;
  }
  HEDDLE_DEVICE float finite_max(int row) const {
    const float top = row_max(row);
    return top == negative_infinity() ? 0.0f : top;
  }
  HEDDLE_DEVICE float row_sum(int row) const {
    const float base = finite_max(row);
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += smem_.sum[w][row] * exp2_approx(smem_.max2[w][row] - base);
    return sum;
  }

  HEDDLE_DEVICE float keys_kept(int row) const {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += smem_.sum[w][row];
    return sum;
  }

  // Columns move by 8 * (row & 3) so that the four rows of a half warp's float2 stores hit other banks.
  static HEDDLE_DEVICE int o_column(int row, int column) { return column ^ ((row & 1) * 8) ^ ((row & 2) * 8); }

  HEDDLE_DEVICE void store_half(int half, float factor) {
    const int row = lane_index() / 4;
    const int column = lane_index() % 4 * 2;
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
      float* to = &smem_.o[warp_index()][row][o_column(row, block * 8 + column)];
      const float* o = state_.o[block];
      *reinterpret_cast<float2*>(to) = {(half ? o[2] : o[0]) * factor, (half ? o[3] : o[1]) * factor};
    }
  }

  // All threads: add the warps' eight rows in warp order and write them out.
  HEDDLE_DEVICE void sum_half(const WorkItem& item, int half) {
    constexpr int kColumns = kHeadDim / 4;
    const RequestRecord request = work_.requests[item.request];
    const int kv_head = state_.info[0].context.kv_head;
    for (int i = threadIdx.x; i < kDecodeRows / 2 * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns * 4, tile_row = row + half * 8;
      if (tile_row >= item.num_rows) break;
      float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int w = 0; w < kWarps; ++w)
        x = x + *reinterpret_cast<const float4*>(&smem_.o[w][row][o_column(row, column)]);
      const float base = Hooks::use_softmax ? finite_max(tile_row) : 0.0f;
      const float sum = Hooks::use_softmax ? row_sum(tile_row) : kCountsKeys<Hooks> ? keys_kept(tile_row) : 1.0f;
      if (item.partial >= 0) {
        store_partial(item.partial, tile_row, column, x, base, sum);
        continue;
      }
      const HookContext context =
          row_info<Spec::kGroup>(work_.header->mask, item, request, kv_head, tile_row).context;
      const RowResult<Hooks> result = finish_row(base, sum, context, hooks_);
      store_output<Spec>(p_, context, column, x * result.scale, result.lse, hooks_);
      if (column == 0 && Hooks::use_softmax) store_lse(p_, context, result.lse);
    }
  }

  HEDDLE_DEVICE void store_partial(int slot, int row, int column, float4 x, float base, float sum) {
    const int64_t slot_row = int64_t(slot) * Spec::kTile.rows + row;
    const float scale = Hooks::use_softmax ? (sum == 0.0f ? 0.0f : 1.0f / sum) : 1.0f;
    *reinterpret_cast<float4*>(p_.partial_o + slot_row * kHeadDim + column) = x * scale;
    if (column == 0) p_.partial_lse[slot_row] = sum == 0.0f ? negative_infinity() : base + __log2f(sum);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  WorkList work_;
  Cursor cursor_;
  DecodeState<Spec> state_;
  KeyRange all_see_;
  int row_id_ = 0;
  int load_stage_ = 0, compute_stage_ = 0;
};

}  // namespace heddle
