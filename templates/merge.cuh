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

template <class Spec, class Hooks>
HEDDLE_DEVICE void merge_partials(const AttentionParams& p, const WorkList& work, int merge,
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
      weight += w;
    }
    const HookContext context =
        row_info<Spec::kGroup>(work.header->mask, item, request, record.kv_head, row).context;
    const RowResult<Hooks> result = finish_row(base, weight, context, hooks);
    store_output<Spec>(p, context, column, sum * result.scale, result.lse, hooks);
    if (column == 0 && Hooks::use_softmax) store_lse(p, context, result.lse);
  }
}

}  // namespace heddle
