// Partial states: writing one, and merging all of a (request, query tile, kv head) in slot order.
//
// A slot holds o (normalised) and lse in the log2 domain, f32. Whoever writes last merges: every
// writer fences and counts; the one that counts num_partials - 1 reads all slots, its own too,
// in slot order. So the sum's order, and with it every bit, is the same whoever came last. It
// also sets the counter back to zero, because a graph replays without a memset.
//   state(I u J): M = max lse2, w = 2^(lse2 - M), o = sum(w o) / sum(w), lse2 = M + log2(sum w).
// An empty slot has lse2 = -inf and weighs nothing; if all are empty o = 0 and lse = -inf.
#pragma once

#include "templates/softmax.cuh"

namespace heddle {

HEDDLE_DEVICE float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
HEDDLE_DEVICE float4 operator*(float4 a, float s) { return {a.x * s, a.y * s, a.z * s, a.w * s}; }

// Four columns of one finished row: output_transform (not of a row that saw no key: that is 0),
// rounding, store.
template <class Spec, class Hooks>
HEDDLE_DEVICE void store_output(const AttentionParams& p, const HookContext& context, int column,
                                float4 x, float lse, const Hooks& hooks) {
  using T = Element<Spec::kType>;
  if constexpr (Hooks::has_output_transform) if (lse != negative_infinity()) {
    x.x = hooks.output_transform(x.x, column, context);
    x.y = hooks.output_transform(x.y, column + 1, context);
    x.z = hooks.output_transform(x.z, column + 2, context);
    x.w = hooks.output_transform(x.w, column + 3, context);
  }
  uint16_t* row = static_cast<uint16_t*>(p.o) + context.q_row * p.o_row_stride +
                  context.qo_head * p.o_head_stride;
  *reinterpret_cast<uint2*>(row + column) = {T::pack(x.x, x.y), T::pack(x.z, x.w)};
}

HEDDLE_DEVICE void store_lse(const AttentionParams& p, const HookContext& context, float lse) {
  if (p.lse) p.lse[context.q_row * p.lse_row_stride + context.qo_head * p.lse_head_stride] = lse;
}

// All threads of the CTA, after every thread has stored its piece of the slot. True for the last
// arriver; its threads may then read all slots of the record.
HEDDLE_DEVICE bool arrive_last(const AttentionParams& p, int merge, int num_partials, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(p.counters + merge, 1u) == num_partials - 1u;
    if (last) p.counters[merge] = 0;
    *flag = last;
  }
  __syncthreads();
  const bool last = *flag;
  if (last) __threadfence();
  return last;
}

// Tall tiles: rows enough for every thread to merge its own columns alone, in few registers.
template <class Spec, class Hooks>
HEDDLE_DEVICE void merge_tall(const AttentionParams& p, const WorkList& work, int merge,
                                  const Hooks& hooks) {
  constexpr int kColumns = Spec::kHeadDim / 4;
  const MergeRecord record = work.merges[merge];
  const RequestRecord request = work.requests[record.request];
  WorkItem item{};
  item.request = record.request;
  item.row_begin = record.row_begin;
  item.num_rows = record.num_rows;
  const int64_t slot_rows = Spec::kTile.rows;
  for (int i = threadIdx.x; i < record.num_rows * kColumns; i += blockDim.x) {
    const int row = i / kColumns, column = i % kColumns * 4;
    const float* lse2 = p.partial_lse + record.first_partial * slot_rows + row;
    const float* o = p.partial_o + (record.first_partial * slot_rows + row) * Spec::kHeadDim + column;
    float top = negative_infinity();
    if constexpr (Hooks::use_softmax) {
#pragma unroll 4
      for (int s = 0; s < record.num_partials; ++s) top = fmaxf(top, load_cg(lse2 + s * slot_rows));
    }
    const float base = top == negative_infinity() ? 0.0f : top;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float weight = 0.0f;
#pragma unroll 4
    for (int s = 0; s < record.num_partials; ++s) {
      float w = 1.0f;
      if constexpr (Hooks::use_softmax) w = exp2_approx(load_cg(lse2 + s * slot_rows) - base);
      const float4 x =
          load_cg(reinterpret_cast<const float4*>(o + s * slot_rows * Spec::kHeadDim));
      sum = sum + x * w;
      weight += kCountsKeys<Hooks> ? exp2_approx(load_cg(lse2 + s * slot_rows)) : w;
    }
    const HookContext context =
        row_info<Spec::kGroup>(work.header->mask, item, request, record.kv_head, row).context;
    const RowResult<Hooks> result = finish_row(base, weight, context, hooks);
    store_output<Spec>(p, context, column, sum * result.scale, result.lse, hooks);
    if (column == 0 && Hooks::use_softmax) store_lse(p, context, result.lse);
  }
}

inline constexpr int kMergeBlock = kWarpSize;  // slots whose weights are in shared memory at once

// Max and sum of one row's weights over all slots, by one warp. Lanes take every 32nd slot.
struct RowTotal {
  float base;
  float weight;
};
HEDDLE_DEVICE RowTotal row_total(const float* lse2, int num_partials, int64_t slot_rows) {
  const int lane = lane_index();
  float top = negative_infinity();
#pragma unroll 1
  for (int s = lane; s < num_partials; s += kWarpSize) top = fmaxf(top, load_cg(lse2 + s * slot_rows));
  for (int step = kWarpSize / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(kFullMask, top, step));
  const float base = top == negative_infinity() ? 0.0f : top;
  float weight = 0.0f;
#pragma unroll 1
  for (int s = lane; s < num_partials; s += kWarpSize)
    weight += exp2_approx(load_cg(lse2 + s * slot_rows) - base);
  for (int step = kWarpSize / 2; step > 0; step /= 2) weight += __shfl_xor_sync(kFullMask, weight, step);
  return {base, weight};
}

// Scratch in shared memory; free of other uses while partials are merged.
template <int kRows>
struct MergeSmem {
  RowTotal total[kRows];
  float weight[kRows][kMergeBlock];
};

// Weights of slots [first, first + kMergeBlock) for all rows, one warp a row.
template <class Spec, class Hooks>
HEDDLE_DEVICE void share_weights(MergeSmem<Spec::kTile.rows>& smem, const AttentionParams& p,
                                 const MergeRecord& record, int first) {
  const int64_t slot_rows = Spec::kTile.rows;
  const int lane = lane_index();
#pragma unroll 1
  for (int row = warp_index(); row < record.num_rows; row += Spec::kTile.warps) {
    const float* lse2 = p.partial_lse + record.first_partial * slot_rows + row;
    if ((Hooks::use_softmax || kCountsKeys<Hooks>) && first == 0) {
      const RowTotal total = row_total(lse2, record.num_partials, slot_rows);
      if (lane == 0) smem.total[row] = total;
      __syncwarp();
    }
    const int s = first + lane;
    float weight = s < record.num_partials ? 1.0f : 0.0f;
    if (Hooks::use_softmax && s < record.num_partials)
      weight = exp2_approx(load_cg(lse2 + s * slot_rows) - smem.total[row].base);
    smem.weight[row][lane] = weight;
  }
}

template <class Spec, class Hooks>
HEDDLE_DEVICE float4 weighted_sum(const MergeSmem<Spec::kTile.rows>& smem, const AttentionParams& p,
                                  const MergeRecord& record, int first, int row, int column) {
  const int64_t stride = int64_t(Spec::kTile.rows) * Spec::kHeadDim;
  const float* o = p.partial_o + (record.first_partial + first) * stride + row * Spec::kHeadDim + column;
  const int slots = min_of(kMergeBlock, record.num_partials - first);
  constexpr int kMergeAhead = 8;  // loads under way: a round trip is 0.7 us
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int begin = 0; begin < slots; begin += kMergeAhead) {
    float4 x[kMergeAhead];
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i)
      if (begin + i < slots) x[i] = load_cg(reinterpret_cast<const float4*>(o + (begin + i) * stride));
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i)
      if (begin + i < slots) sum = sum + x[i] * smem.weight[row][begin + i];
  }
  return sum;
}

// Few rows, many slots: weights once a row, then many loads under way. All threads.
template <class Spec, class Hooks>
HEDDLE_DEVICE void merge_flat(MergeSmem<Spec::kTile.rows>& smem, const AttentionParams& p, const WorkList& work,
                                  int merge, const Hooks& hooks) {
  constexpr int kColumns = Spec::kHeadDim / 4;
  constexpr int kThreads = Spec::kTile.warps * kWarpSize;
  constexpr int kPieces = (Spec::kTile.rows * kColumns + kThreads - 1) / kThreads;
  const MergeRecord record = work.merges[merge];
  const RequestRecord request = work.requests[record.request];
  WorkItem item{};
  item.request = record.request;
  item.row_begin = record.row_begin;
  item.num_rows = record.num_rows;
#pragma unroll 1
  for (int piece = 0; piece < kPieces; ++piece) {
    const int i = piece * kThreads + threadIdx.x;
    const int row = i / kColumns, column = i % kColumns * 4;
    const bool mine = row < record.num_rows;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int first = 0; first < record.num_partials; first += kMergeBlock) {
      if (piece == 0 || record.num_partials > kMergeBlock) {
        __syncthreads();  // the last block's weights have been read
        share_weights<Spec, Hooks>(smem, p, record, first);
        __syncthreads();
      }
      if (mine) sum = sum + weighted_sum<Spec, Hooks>(smem, p, record, first, row, column);
    }
    if (!mine) continue;
    const RowTotal total =
        Hooks::use_softmax || kCountsKeys<Hooks> ? smem.total[row] : RowTotal{0.0f, 1.0f};
    const HookContext context =
        row_info<Spec::kGroup>(work.header->mask, item, request, record.kv_head, row).context;
    const RowResult<Hooks> result = finish_row(total.base, total.weight, context, hooks);
    store_output<Spec>(p, context, column, sum * result.scale, result.lse, hooks);
    if (column == 0 && Hooks::use_softmax) store_lse(p, context, result.lse);
  }
  __syncthreads();  // the scratch is free again
}

}  // namespace heddle
