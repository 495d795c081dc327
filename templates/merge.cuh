// Partial states: publishing one, and joining all of a (request, query tile, kv head) in slot order.
//
// A slot holds o (normalised) and lse in the log2 domain, f32. Between launches every word of every
// slot is kEmptyWord. A piece publishes by plain stores; the last piece of the stream polls each word
// until it is not empty, and puts kEmptyWord back, so that a graph replays without a memset. No fence
// and no counter: on an H200 they were three of the round trips that a short launch waited for.
// The sum's order, and with it every bit, is that of the slots.
//   state(I u J): M = max lse2, w = 2^(lse2 - M), o = sum(w o) / sum(w), lse2 = M + log2(sum w).
// An empty state has lse2 = -inf and weighs nothing; if all are empty o = 0 and lse = -inf.
//
// Nobody waits for a CTA of a higher number, and the hardware starts CTAs in the order of their
// numbers; so whoever is waited for is running or has finished, whatever else the GPU does.
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

// --- words of a slot ------------------------------------------------------------------------

HEDDLE_DEVICE bool is_empty(float x) { return __float_as_uint(x) == kEmptyWord; }
HEDDLE_DEVICE bool is_empty(float2 x) { return is_empty(x.x) || is_empty(x.y); }
HEDDLE_DEVICE bool is_empty(float4 x) { return is_empty(x.x) || is_empty(x.y) || is_empty(x.z) || is_empty(x.w); }

// Polls until something has been published.
template <class Words>
HEDDLE_DEVICE Words await(const Words* slot) {
  Words x = load_relaxed(slot);
  while (is_empty(x)) x = load_relaxed(slot);
  return x;
}

// Another NaN where it would look empty; arithmetic never gives that one, a hook's own bits could.
HEDDLE_DEVICE float not_empty(float x) { return is_empty(x) ? __uint_as_float(0x7fffffffu) : x; }
HEDDLE_DEVICE void publish(float* to, float x) { store_relaxed(to, not_empty(x)); }
HEDDLE_DEVICE void publish(float2* to, float2 x) { store_relaxed(to, float2{not_empty(x.x), not_empty(x.y)}); }
HEDDLE_DEVICE void publish(float4* to, float4 x) {
  store_relaxed(to, float4{not_empty(x.x), not_empty(x.y), not_empty(x.z), not_empty(x.w)});
}

HEDDLE_DEVICE void put_back_empty(float* to) { store_relaxed(to, __uint_as_float(kEmptyWord)); }
HEDDLE_DEVICE void put_back_empty(float2* to) {
  const float empty = __uint_as_float(kEmptyWord);
  store_relaxed(to, float2{empty, empty});
}
HEDDLE_DEVICE void put_back_empty(float4* to) {
  const float empty = __uint_as_float(kEmptyWord);
  store_relaxed(to, float4{empty, empty, empty, empty});
}

// --- joining --------------------------------------------------------------------------------

// What a row's state is in a slot, from its running max and sum.
template <class Hooks>
HEDDLE_DEVICE float slot_scale(float sum) {
  return !Hooks::use_softmax ? 1.0f : sum == 0.0f ? 0.0f : 1.0f / sum;
}
template <class Hooks>
HEDDLE_DEVICE float slot_lse2(float max2, float sum) {
  return sum == 0.0f ? negative_infinity() : (Hooks::use_softmax ? max2 : 0.0f) + __log2f(sum);
}

// Four columns of one row over the states that have been added, as finish_row() wants them.
template <class Hooks>
struct JoinedState {
  float max2 = negative_infinity();
  float sum = 0.0f;
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};

  // Before states of at most `top` are added.
  HEDDLE_DEVICE void raise(float top) {
    if constexpr (!Hooks::use_softmax) return;
    const float to = fmaxf(max2, top);
    const float factor = to == negative_infinity() ? 1.0f : exp2_approx(max2 - to);
    max2 = to;
    sum *= factor;
    o = o * factor;
  }
  HEDDLE_DEVICE void add(float lse2, float4 x) {
    if constexpr (Hooks::use_softmax) {
      const float weight = exp2_approx(lse2 - (max2 == negative_infinity() ? 0.0f : max2));
      sum += weight;
      o = o + x * weight;
    } else {
      if constexpr (kCountsKeys<Hooks>) sum += exp2_approx(lse2);
      o = o + x;
    }
  }
};

// Adds the slots that an item joins. Every word of o has one reader, who empties it; words of lse
// have several: empty_lse() after a CTA barrier.
template <class Spec, class Hooks>
HEDDLE_DEVICE void add_slots(JoinedState<Hooks>& state, const AttentionParams& p, const WorkItem& item, int row,
                             int column) {
  constexpr int kAhead = 8;  // slots under way: a round trip is 0.7 us
  const int count = item.join;
  const int64_t first_row = item.partial * int64_t(Spec::kTile.rows) + row;
  const float* lse2 = p.partial_lse + first_row;
  float* o = p.partial_o + first_row * Spec::kHeadDim + column;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAhead) {
    float weight2[kAhead];
    float4 x[kAhead];
    const auto ask = [&](int i) {
      weight2[i] = load_relaxed(lse2 + int64_t(begin + i) * Spec::kTile.rows);
      x[i] = load_relaxed(reinterpret_cast<const float4*>(o + int64_t(begin + i) * Spec::kTile.rows * Spec::kHeadDim));
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < count) ask(i);
    float top = negative_infinity();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= count) continue;
      while (is_empty(weight2[i]) || is_empty(x[i])) ask(i);
      put_back_empty(reinterpret_cast<float4*>(o + int64_t(begin + i) * Spec::kTile.rows * Spec::kHeadDim));
      top = fmaxf(top, weight2[i]);
    }
    state.raise(top);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < count) state.add(weight2[i], x[i]);
  }
}

// Threads 0 to `threads` - 1, after all of them have read the slots that `item` joins.
template <class Spec>
HEDDLE_DEVICE void empty_lse(const AttentionParams& p, const WorkItem& item, int threads) {
#pragma unroll 1
  for (int i = threadIdx.x; i < item.join * Spec::kTile.rows; i += threads)
    if (i % Spec::kTile.rows < item.num_rows)
      put_back_empty(p.partial_lse + item.partial * int64_t(Spec::kTile.rows) + i);
}

}  // namespace heddle
