// Decode: group * qo_len <= 16 rows against a long KV, limited by the bytes of K and V.
//
// The heads of a group (and its few tokens) are the rows of one m16n8k16 tile (decode_rows.cuh). Warps
// share no keys: each owns 16 (or 32 short) keys of every KV tile, loads just those with cp.async into
// its own stages, and keeps its own max, sum and accumulators. So the main loop has no CTA barrier, and
// warps drift apart, which keeps loads in flight. At the end of a (work item, kv head) the warps' states
// meet in shared memory, each in its warp's free stage. The load cursor runs `stages - 1` tiles ahead,
// across items; the page ids of a tile are read one tile before its rows, and q rides with the first tile
// of its head.
//
// Where rows are short a CTA reads two kv heads abreast, each by a team of its warps (decode_team.cuh); what is said of the CTA
// is then so of the team.
//
// shared memory:  stages x warps x (K keys x D, V keys x D) | stages x teams x Q rows x D | states 2 x warps x rows
//
// Ladder, us on H200s (2026-11-29; bf16, D = 128, 32/8 heads, page 16, ragged order of pages; read ceiling
// 4.57 to 4.69 TB/s, so rows of different runs differ by 2 %):
//   decode_b64_4k   b1_1k   b1_8k
//   257             9.3     18.8    warp-private stages (4 warps, 3 stages, 2 CTAs an SM), merge by the
//                                   last arriver; ncu: DRAM 88 % busy, issue slots 35 %
//   253             8.6     16.7    + programmatic launch, merge with 16 loads under way
//   248 to 254      8.2     18.0    the item carries its request, K and V asked for before q, one page id a
//                                   warp, pieces into slots that are their own flags; but the loads of a
//                                   join waited for each other (stamps: 5.5 of the 8.2 us were the join)
//   252             7.3     15.4    + a join's loads all under way (merge.cuh), rows of 8
//   245             7.1     15.0    6 warps, 2 stages, 2 CTAs; graphs of 8 launches from here on
//   250             7.2     15.6    (4.57 TB/s; 250, 7.4, 15.7 in front of it) what slots weigh is read beside the first of
//                                   them. Stamps of b1_1k, us: first tile computed 2.8, its warps met 3.3, pieces out 3.8
//                                   (seen at 4.5), joined 6.0, written 6.8; of b64_4k 24 SMs are done after 205 of 250
//
// Tiles with the loop above, one run (warps, stages, CTAs an SM; us):
//             b1_1k  b1_8k  b1_32k  b16_8k  b64_4k  page1  8x1   one128k  zipf  uniform  verify
//   6, 2, 2   7.1    15.0   38.6    125.2   245.1   251.3  69.5  366.9    381   407      125.9
//   8, 2, 1   6.4    14.5   37.2    124.9   245.6   255.7  66.9  371.0    402   414      134.3
//   4, 2, 3   7.7    16.8   41.3    125.9   244.2   250.7  69.5  367.5    380   407      138.8
//   4, 3, 2   7.2    15.0   38.8    126.3   250.4   265.4  69.1  374.0    382   413      137.5
//   8, 3, 1   6.9    13.6   37.7    130.3   253.1   277.0  72.2           392   430      144.2
// One large CTA joins fewer pieces, but its short last tiles and the ends of its heads stand alone. So it serves few heads
// (has_few_heads), and items cost it more in the planner's eyes: zipf 385 us since (382 with 6, 2, 2), uniform 412 (408),
// b16_8k 123.3 (125.3). Few heads, us, 6, 2, 2 or what stood in its place, and 8, 2, 1 (2026-11-30, read 4.68):
//   b1_8k of 8/1 heads 22.1, 12.7; b1_4k with 16 rows 18.8, 14.1; D = 192 23.6, 12.8; D = 64 9.3, 7.4 (8 x 32 keys);
//   b1_8k, 4 tokens 24.7, 18.1; b16_4k, 4 tokens 73.5, 65.7; 1 of 128k beside 15 of 1k 141.0, 140.5; 16 uniform 110.1, 110.8;
//   256 of 8/1 heads by zipf 59.9, 55.7. 12, 2, 1: b1_1k 7.0, b1_8k 15.1.
// D = 64: 16 keys a warp 134 (2, 3, 6) to 148; 32 keys 128 (6, 2, 2; 256 requests of 1k 133.5), 126.4 (3, 2, 4; 130.9),
// 129 (4, 2, 2; 133.2), 131 (8, 2, 1). But 3, 2, 4 takes 73 us where 32 requests of 4k took 68, 24.3 where 8 took 22.9, and
// 1 % more on skewed batches. D = 96: 202 with
// copies that keep their column, 214 without. D = 192: 190 (4, 2, 2), D = 256: 248 (6, 2, 1).
// Heads abreast (2026-12-01, 4.57; keys a warp, warps, stages, CTAs an SM, heads; us):
//   D = 64            64x4k  32x4k  256x1k  zipf   page1     D = 96            64x4k  zipf
//   32, 6, 2, 2, 1    131.7  67.3   134.8   207.8  133.6     16, 6, 2, 2, 1    208.3  327.6
//   32, 6, 2, 2, 2    127.0  67.1   130.9   198.4  128.9     16, 4, 3, 2, 2    203.0  319.5
//   32, 8, 2, 1, 4    126.3  67.6   127.4   196.5  129.4     16, 8, 3, 1, 4    203.0  321.1
//   32, 4, 2, 3, 2    126.4  67.0   129.2   196.4  128.6     16, 4, 2, 3, 2    208.7  331.3
//   32, 8, 2, 1, 2    127.2  65.5   130.5   197.7  130.6     32, 8, 2, 1, 4    206.9  324.9
// With whole lines asked of L2 (decode_copy.cuh) D = 96 takes, 64x4k / 256x1k / zipf: 16, 4, 3, 2, 2 190.6 / 194.0 / 297;
//   16, 8, 3, 1, 4 189.5 / 192.3 / 297.5; 32, 8, 2, 1, 4 192.3 / 193.9 / 314; 32, 4, 2, 2, 2 191.9 / 193.7 / 309;
//   16, 4, 2, 3, 2 196.9 / 193.7 / 322; 16, 6, 2, 2, 2 194.6 / 194.9 / 318; lines of 256 bytes 196.8, D = 128 260 for 247.
// With rope, D = 64, twelve warps an SM take 276 us (4.68), eight 353, one head by twelve 285; D = 32 72 us (4.68), 100 before.
// D = 128: two heads 243 to 244 where one takes 243; a warp a head of eight, no barrier, 251 (246 then), of which the ends of
//   heads are 11: 5 are slots, eight times as many, 3 their joins.
//
// Slower or the same:
//   A stage refilled as soon as it has been used, sums in shared memory of their own, so that loads are
//   under way through the end of a head: 246 to 251; only zipf with 8, 2, 1 gained (402 to 393). More bytes
//   under way make it slower (192 KB an SM, or K and V of a stage refilled apart: 248 to 260).
//   Rows of the first tiles brought to L2 before the dependency wait: b1_1k 6.4 to 6.0 behind another
//   launch of itself, the others the same.
//   8 slots of a join under way or 12: the same; 16 spill.
// SMs are not equally fast: with equal shares 24 of 132 were done after 205 us of b64_4k, the others after
//   237 to 251. But shares of 1/4 to 1/30 in later CTAs of a larger grid gained 1 % on zipf and b64_4k and
//   lost 2 to 15 % on 16x8k, 1x128k and 8/1 heads; a tenth of the keys drawn in pieces of 256 to 512 keys
//   from a counter gained 4 % on uniform and lost 3 to 7 % on 8/1 heads.
//   No wait in the loop for the next tile's page ids (arrived(); 17 % of a warp's time in verify_b32_q4): page1 253 for 257, the
//   others the same. Beside append an SM with two CTAs reads 38 to 41 bytes/ns at most, with one 32; 33 are its share.
// A load's code once, in the loop, and no longer in front of it too (4.67 TB/s, us before and since): 2,080 instructions for
//   2,240, b1_1k 7.1 to 7.3, b1_8k 15.5 to 16.0 (the first load now waits for what a head begins with;
//   begin_head() in the loop, behind it, takes 238 registers and spills with 16 rows), the others the same. With 16 rows
//   rope, alibi and relative_bias then have the registers for 6 warps: verify_b32_q4 of alibi 140 to 126; of custom_mask,
//   which reads q again, 141 to 127.
// Slower or the same too (2026-11-30, 4.57 TB/s; b64_4k 250, b16_8k 128):
//   K and V through the copy engine, a box of 16 keys x 128 columns a page and warp, 450 instructions a tile for 812, V's
//     unseen halves cleared in registers: all rows as with cp.async within 1 %, whatever the tile (6, 2, 2; 4, 3, 2; 5, 2, 2;
//     8, 3, 1; b1_1k 6.4 to 7.0). With L2 promotion of 256 bytes b64_4k 263, D = 64 185 for 134. A proxy fence costs
//     1.2 us where the next load waits behind it. So neither instructions nor loads under way are what large batches lack.
//   6 to 10 % of the keys kept back in items of 4 to 8 us, drawn from a counter, joins behind all of them: b64_4k 251 to 254,
//     b16_8k 136 to 140, uniform 419 to 421 for 418, zipf 382 to 386 for 392; with joins among them worse.
//   4, 2, 3 again, with heads in step (planner/in_step.h): b64_4k 244 where 6, 2, 2 took 242, page64 244.5 (241), b16_8k 125
//     (123), b256_1k 246.6 (247.5), 1024 requests of 256 254 (261). Before that 5, 2, 2 and 4, 2, 2 (64 KB under way in place
//     of 96) within 1.3 % of 6, 2, 2.
//   Whole streams where 256 of 264 CTAs can have as many: b64_4k, b128_2k and b256_1k the same, 32 kv heads 955 for 937.
//   A barrier less at the end of a head, whose stages that of the next one's first tile frees: the same.
// What is written costs more than its bytes (2026-12-01, 4.57): b256_1k 252.0, without joins 249.9, nor slots 248.9, nor rows
//   of output 242.3. A changed line that L2 gives up goes to memory among the reads of K and V. So L2 is asked to keep output
//   and slots, and a join's slots are asked for ahead of the barrier in front of it: b64_4k 245.7 to 243.4, b256_1k 251.8 to
//   248.9, 8/1 heads 68.4 to 67.7, b1_8k 14.3 to 14.0, batch-invariant b64_4k 258.6 to 251.7, one128k 370.5 to 371.9 (6
//   slots under way where there were 8 may be why). K and V given up first (evict_first) as well, 242.1 and 244.8 (246.3 and
//   251.8 without all of it), but behind a kernel that has left 48 MB in L2 that is 279 us where 268 stand, and 211 where 182
//   stand for requests that share 2k of their 4k keys.
//   Given up in the order that they had (evict_unchanged): as without.
// A reader that does nothing else, in the same order, takes 239 us where the kernel takes 243 (b64_4k); with shares by how fast
//   each SM is, which makes all end together, it takes as long: memory is busy until the last of them.
//   An SM alone reads far more than its share: 22 CTAs of 12 warps 85 bytes/ns each, 66 of them 62 (264 us).
// From b16_8k to its multiples time grows at 0.985 of the read ceiling; about 10 us a launch are not that:
//   5 are what b1_1k takes, start and join.
#pragma once

#include "templates/decode_copy.cuh"
#include "templates/decode_output.cuh"
#include "templates/transform.cuh"

namespace heddle {

template <class Spec, class Hooks>
class Decode {
  static constexpr int kPageSize = Spec::kPageSize;
  static constexpr int kTileKv = Spec::kTile.kv;
  static constexpr int kStages = Spec::kTile.stages;
  static constexpr int kRows = Spec::kTile.rows;
  static constexpr int kWarpKeys = kWarpKeysOf<Spec>;
  using Team = heddle::Team<Spec>;
  using Rows = DecodeRows<Spec, kRows>;
  using Smem = DecodeSmem<Spec>;
  using Keys = WarpKeys<Spec>;
  using QkTile = typename Smem::QkTile;
  using VTile = typename Smem::VTile;
  using Address = KvAddress<kPageSize>;
  using Cursor = LoadCursor<kTileKv, Spec::kGroup, Spec::kRowsGiven, Team::kTeams>;
  static constexpr int kHalves = Rows::kHalves;
  static_assert(kTileKv == Team::kWarps * kWarpKeys && (kWarpKeys == 16 || kWarpKeys == 32),
                "every warp owns 16 or 32 keys of a KV tile");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE Decode(const AttentionParams& params, const Hooks& hooks, Smem& smem)
      : p_(params), hooks_(hooks), smem_(smem), work_(params, Pipeline::decode), cursor_(work_) {}

  HEDDLE_DEVICE void run() {
    // What has been read so far is the plan, which no kernel in front of this one writes.
    release_successor();
    prefetch_row_ids();
    if (!is_side_by_side<Spec>(p_)) wait_for_predecessor();
    if (work_.begin != work_.end) process_items();
    if (blockIdx.x == 0 && is_side_by_side<Spec>(p_)) wait_for_predecessor();
  }

 private:
  HEDDLE_DEVICE void process_items() {
    fetch_row_id();
    for (int i = work_.begin; i < work_.end; ++i) {
      const WorkItem& item = work_.items[i];
      for (int kv_head = item.kv_head_begin; kv_head < item.kv_head_end; kv_head += Team::kTeams)
        process_head(item, kv_head + Team::index());
    }
    cp_async_wait<0>();
  }

  // --- loading ------------------------------------------------------------------------------

  HEDDLE_DEVICE int load_head() const { return cursor_.kv_head() + Team::index(); }
  HEDDLE_DEVICE int own_key(int start) const { return start + Team::warp() * kWarpKeys; }

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

  // That run's page in the cursor's tile. It has one even where nobody sees its first keys.
  HEDDLE_DEVICE void fetch_row_id() {
    if (cursor_.done()) return;
    const int run = own_key(cursor_.start()) + Keys::looked_up_run();
    row_id_ = Address::row_id(p_, cursor_.kv_offset(), run, cursor_.seen().contains_some(run, run + Keys::kRun));
  }

  // Starts the copy of the cursor's tile into the next stage and moves on. Always one group.
  HEDDLE_DEVICE void load_tile() {
    if (!cursor_.done()) {
      if (!Hooks::has_query_transform && cursor_.begins_head()) load_q();
      const int first = own_key(cursor_.start());
      const KeyRange& seen = cursor_.seen();
      const uint32_t visible = seen.contains_all(first, first + kWarpKeys)
                                   ? kFullMask
                                   : __ballot_sync(kFullMask, seen.contains(first + lane_index() % kWarpKeys));
      const int64_t kv_offset = cursor_.kv_offset();
      const int run = first + Keys::looked_up_run();
      Keys::template copy_rows<QkTile>(free_stage().k, static_cast<const uint16_t*>(p_.k) + load_head() * p_.k_head_stride,
                        Address::k_offset(p_, kv_offset, row_id_, run), p_.k_row_stride, visible);
      Keys::template copy_rows<VTile>(free_stage().v, static_cast<const uint16_t*>(p_.v) + load_head() * p_.v_head_stride,
                       Address::v_offset(p_, kv_offset, row_id_, run), p_.v_row_stride, visible);
      cursor_.advance();
      fetch_row_id();
    }
    load_stage_ = load_stage_ + 1 == kStages ? 0 : load_stage_ + 1;
    cp_async_commit();
  }

  // All threads of the team together; the first tile's barrier makes it visible.
  HEDDLE_DEVICE void load_q() {
    const WorkItem& item = cursor_.item();
    uint8_t* to = next_q(load_q_);
    for (int i = Team::thread(); i < item.num_rows * QkTile::kChunks; i += Team::kThreads) {
      const int row = i / QkTile::kChunks, chunk = i % QkTile::kChunks;
      cp_async_16(shared_address(to + QkTile::chunk_offset(row, chunk)),
                  q_row(item, load_head(), row) + chunk * kChunkElements, QkTile::has_chunk(chunk));
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
    return smem_.q[counter][Team::index()];
  }

  // Between tiles: the one that is neither loading nor waiting to be computed.
  HEDDLE_DEVICE typename Smem::WarpStage& free_stage() const { return smem_.stage[load_stage_][warp_index()]; }

  // All warps of a team are at the same stage when a head ends.
  HEDDLE_DEVICE WarpStates<Spec, Hooks> states() const { return {smem_, load_stage_}; }

  // --- one (work item, kv head) -------------------------------------------------------------

  HEDDLE_DEVICE void process_head(const WorkItem& item, int kv_head) {
    kv_head_ = kv_head;
    const bool sees_keys = item.tile_begin < item.tile_end;
    if (sees_keys) {
      tiles_ = TileRange<kTileKv>(item);
      begin_head(item);
      if constexpr (!kChangesEveryLogit<Hooks>)  // there registers are short
        tiles_.gap_begin = arrived(tiles_.gap_begin), tiles_.gap_tiles = arrived(tiles_.gap_tiles);
      // The first of all loads go ahead of tiles that stand in front of the first one: the code of a load, a third of the
      // loop's, is there once.
      for (int t = tiles_.begin - loads_ahead_; t < tiles_.end; ++t) process_tile(item, t);
      loads_ahead_ = 0;
      __syncwarp();  // the stage was the last tile's
      states().share(rows_, state_, item.num_rows);
    }
    const DecodeOutput<Spec, Hooks> output(p_, hooks_, item, kv_head);
    output.finish(states(), sees_keys);
    Team::sync();  // the stages are free again
    output.empty_slots();
  }

  HEDDLE_DEVICE void begin_head(const WorkItem& item) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) state_[half] = empty_row_state();
    rows_.begin();
    all_see_ = keys_of_all<Spec::kGroup, Spec::kRowsGiven, Hooks>(work_.header, item);
    q_ = next_q(compute_q_);
  }

  // All threads of the team; the first tile's barrier makes it visible.
  HEDDLE_DEVICE void transform_q(const WorkItem& item) {
    constexpr int kPairs = QkTile::kColumns / 2;
    for (int i = Team::thread(); i < item.num_rows * kPairs; i += Team::kThreads) {
      const int row = i / kPairs, dim = i % kPairs * 2;
      const HookContext c = row_info<Spec::kGroup>(work_.header->mask, item, kv_head_, row).context;
      *reinterpret_cast<uint32_t*>(q_ + QkTile::element_offset(row, dim)) =
          QkTile::has_chunk(dim / kChunkElements) ? load_q_pair<Spec>(q_row(item, kv_head_, row), dim, c, hooks_) : 0;
    }
  }

  HEDDLE_DEVICE void process_tile(const WorkItem& item, int t) {
    if (t >= tiles_.begin) cp_async_wait<kStages - 2>();
    // This stage has landed for all lanes, and all are done with the one to refill; q for all warps of the team.
    if (t == tiles_.begin) {
      if constexpr (Hooks::has_query_transform) transform_q(item);
      Team::sync();
      rows_.read_q(shared_address(q_));
    } else {
      __syncwarp();
    }
    load_tile();
    if (t < tiles_.begin) return;
    auto& stage = smem_.stage[compute_stage_][warp_index()];
    compute_stage_ = compute_stage_ + 1 == kStages ? 0 : compute_stage_ + 1;
    const int start = tiles_.start(t), first = own_key(start);
    if constexpr (Hooks::has_key_transform || Hooks::has_value_transform) transform_stage(stage, item, first);
    typename Rows::Logits s = {};
    rows_.score(s, shared_address(q_), shared_address(stage.k));
    weigh(s, item, start, first);
    rows_.accumulate(s, shared_address(stage.v));
  }

  HEDDLE_DEVICE void transform_stage(typename Smem::WarpStage& stage, const WorkItem& item, int first) {
    const KeyRange seen = keys_of_some<Spec::kGroup, Spec::kRowsGiven>(work_.header, item);
    const HookContext context = key_context(item.request, item.qo_len, item.kv_len, -1, kv_head_, Spec::kGroup);
    const LandedKeys keys{kWarpKeys, first, seen.contains_all(first, first + kWarpKeys),
                          [&](int row) { return seen.contains(first + row); }};
    if constexpr (Hooks::has_key_transform)
      transform_keys<Spec, false, 1>(stage.k, keys, lane_index(), kWarpSize, context, hooks_);
    if constexpr (Hooks::has_value_transform)
      transform_keys<Spec, true, 1>(stage.v, keys, lane_index(), kWarpSize, context, hooks_);
    __syncwarp();
  }

  // Hooks, masks and softmax of this warp's keys.
  HEDDLE_DEVICE void weigh(typename Rows::Logits& s, const WorkItem& item, int start, int first) {
    // Rows are placed only where somebody asks.
    if (!all_see_.contains_all(start, start + kTileKv))
      apply<true>(s, item, first);
    else if constexpr (kChangesEveryLogit<Hooks>)
      apply<false>(s, item, first);
    if constexpr (Hooks::use_softmax) {
      float factor[kHalves];
      update_softmax<Hooks>(s, state_, factor, logit_to_log2<Hooks>(p_.sm_scale));
      bool changed = factor[0] != 1.0f;
      if constexpr (kHalves == 2) changed |= factor[1] != 1.0f;
      // Once the maxima have settled most tiles change none of them.
      if (__any_sync(kFullMask, changed)) rows_.rescale(factor);
    }
  }

  template <bool kMasked>
  HEDDLE_DEVICE void apply(typename Rows::Logits& s, const WorkItem& item, int first) {
    RowInfo info[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      info[half] = row_info<Spec::kGroup>(work_.header->mask, item, kv_head_, lane_index() / 4 + half * 8);
      if constexpr (kMasked) take_given_range<Spec>(info[half], work_.header);
    }
    apply_variant<kMasked>(s, info, state_, first, p_.sm_scale, hooks_);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  Smem& smem_;
  WorkList work_;
  Cursor cursor_;
  Rows rows_;
  RowState state_[kHalves];
  TileRange<kTileKv> tiles_;
  KeyRange all_see_;
  uint8_t* q_ = nullptr;
  int kv_head_ = 0;
  int row_id_ = 0;
  int load_stage_ = 0, compute_stage_ = 0;
  int load_q_ = 0, compute_q_ = 0;
  int loads_ahead_ = kStages - 1;  // that are still to come
};

}  // namespace heddle
