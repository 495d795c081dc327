// append_kv: the rows of a step's new keys and values go to their pages, turned on the way where the
// variant's key_ and value_transform are applied there.
//
//   for each item of both pipelines, dealt to CTAs round robin:
//     for each 16 bytes of its new rows (token, kv head): page id; load of k and of v; store of both
//
// A copy's speed is bytes in flight: each thread has kUnroll chunks of K and as many of V under way.
// The work list's own borders are not used: they balance attention, where the first query tiles of a
// causal prompt are cheap, and here each row costs the same. Items of a request with several query
// tiles have one kv head (planner/streams.h), so no item is large.
#pragma once

#include "templates/append_rows.h"
#include "templates/row_chunk.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendKv {
  static constexpr int kKChunks = Spec::kHeadDim / kChunkElements, kVChunks = Spec::kHeadDimVo / kChunkElements;
  static constexpr int kChunks = max_of(kKChunks, kVChunks);  // of a row, as far as it has them
  // Transforms take registers, and their own arithmetic hides the loads.
  static constexpr int kUnroll = Hooks::has_key_transform || Hooks::has_value_transform ? 1 : 4;

 public:
  HEDDLE_DEVICE AppendKv(const AppendKvParams& params, const Hooks& hooks) : p_(params), hooks_(hooks) {}

  HEDDLE_DEVICE void run() {
    release_successor();
    const PlanSection* section = reinterpret_cast<const PlanHeader*>(p_.plan)->section;
    const int num_decode = section[0].num_items, num_items = num_decode + section[1].num_items;
    const WorkItem* decode = items_of(section[0]);
    const WorkItem* append = items_of(section[1]);
    wait_for_predecessor();  // the new rows are written, and the pages are no longer read
#pragma unroll 1
    for (int i = blockIdx.x; i < num_items; i += gridDim.x)
      store_item(i < num_decode ? decode[i] : append[i - num_decode]);
  }

 private:
  HEDDLE_DEVICE const WorkItem* items_of(const PlanSection& section) const {
    return reinterpret_cast<const WorkItem*>(p_.plan + section.items_offset);
  }

  // 16 bytes of K and of V: where they go, and what goes there.
  struct Move {
    int64_t k_offset, v_offset;
    uint4 k, v;
  };

  HEDDLE_DEVICE void store_item(const WorkItem& item) {
    const NewRows rows = new_rows(item, Spec::kGroup);
    const int heads = item.kv_head_end - item.kv_head_begin;
    const int count = (rows.end - rows.begin) * heads * kChunks;
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += blockDim.x * kUnroll) {
      Move moves[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        // The last chunk stands in for those behind it: with a branch the loads would be waited for one by one.
        const int i = min_of(first + u * blockDim.x, count - 1);
        const int row = i / kChunks / heads;
        moves[u] = load(item, rows.begin + row, item.kv_head_begin + i / kChunks - row * heads, i % kChunks);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * blockDim.x >= count) continue;
        const int chunk = (first + u * blockDim.x) % kChunks;
        if (kKChunks == kChunks || chunk < kKChunks)
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p_.k.to) + moves[u].k_offset) = moves[u].k;
        if (kVChunks == kChunks || chunk < kVChunks)
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p_.v.to) + moves[u].v_offset) = moves[u].v;
      }
    }
  }

  // Where the rows of one side are shorter, their last chunk stands in.
  HEDDLE_DEVICE Move load(const WorkItem& item, int row, int kv_head, int chunk) const {
    const int k_chunk = kKChunks == kChunks ? chunk : min_of(chunk, kKChunks - 1);
    const int v_chunk = kVChunks == kChunks ? chunk : min_of(chunk, kVChunks - 1);
    const HookContext context = append_context(item, row, kv_head, Spec::kGroup);
    const uint16_t* k = from(p_.k, item.qo_begin + row, kv_head);
    const uint16_t* v = from(p_.v, item.qo_begin + row, kv_head);
    Move move;
    move.k_offset = to(p_.k, item.kv_offset, context.kv_pos, kv_head) + k_chunk * kChunkElements;
    move.v_offset = to(p_.v, item.kv_offset, context.kv_pos, kv_head) + v_chunk * kChunkElements;
    if constexpr (Hooks::has_key_transform)
      move.k = RowChunk<Spec::kType, Spec::kHeadDim, Hooks::key_pair>::load(
          k, k_chunk, [&](float x, float pair, int dim) { return hooks_.key_transform(x, pair, dim, context); });
    else
      move.k = reinterpret_cast<const uint4*>(k)[k_chunk];
    if constexpr (Hooks::has_value_transform)
      move.v = RowChunk<Spec::kType, Spec::kHeadDimVo, Hooks::value_pair>::load(
          v, v_chunk, [&](float x, float pair, int dim) { return hooks_.value_transform(x, pair, dim, context); });
    else
      move.v = reinterpret_cast<const uint4*>(v)[v_chunk];
    return move;
  }

  static HEDDLE_DEVICE const uint16_t* from(const AppendKvParams::Side& side, int64_t row, int64_t kv_head) {
    return static_cast<const uint16_t*>(side.from) + row * side.from_row_stride + kv_head * side.from_head_stride;
  }
  HEDDLE_DEVICE int64_t to(const AppendKvParams::Side& side, int64_t kv_offset, int kv_pos, int64_t kv_head) const {
    if constexpr (Spec::kPageSize == 0) return (kv_offset + kv_pos) * side.row_stride + kv_head * side.head_stride;
    constexpr int kPageSize = max_of(Spec::kPageSize, 1);
    const int64_t page = __ldg(p_.kv_indices + kv_offset + kv_pos / kPageSize);
    return page * side.page_stride + kv_pos % kPageSize * side.row_stride + kv_head * side.head_stride;
  }

  const AppendKvParams& p_;
  const Hooks& hooks_;
};

}  // namespace heddle
