// Partial states: publishing one, and joining all of a (request, query tile, kv head) in slot order.
//
// A slot holds o (normalised) and lse in the log2 domain, f32. Of decode's every word is its own flag: between launches it
// is kEmptyWord. A piece publishes by stores; the last piece of the stream polls each word until it is not empty, and puts
// kEmptyWord back, so that a graph replays without a memset. No fence and no counter: each would be one more round
// trip that a short launch waits for. Append's slots are larger, and there words put back cost as much as words read:
// a row's lse, stored behind a fence, is the flag of its o (append_output.cuh). States of shared prefixes, which decode
// reads, are as its own slots are.
// The sum's order, and with it every bit, is that of the slots.
//   state(I u J): M = max lse2, w = 2^(lse2 - M), o = sum(w o) / sum(w), lse2 = M + log2(sum w).
// An empty state has lse2 = -inf and weighs nothing; if all are empty o = 0 and lse = -inf.
//
// Nobody waits for a CTA of a higher number, and the hardware starts CTAs in the order of their
// numbers; so whoever is waited for is running or has finished, whatever else the GPU does.
#pragma once

#include "templates/decode_team.cuh"
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
  store_kept(reinterpret_cast<uint2*>(row + column), uint2{T::pack(x.x, x.y), T::pack(x.z, x.w)});
}

HEDDLE_DEVICE void store_lse(const AttentionParams& p, const HookContext& context, float lse) {
  if (p.lse) p.lse[context.q_row * p.lse_row_stride + context.qo_head * p.lse_head_stride] = lse;
}

// --- words of a slot ------------------------------------------------------------------------

HEDDLE_DEVICE bool is_empty(float x) { return __float_as_uint(x) == kEmptyWord; }

HEDDLE_DEVICE void put_back_empty(float* to) { store_relaxed(to, __uint_as_float(kEmptyWord)); }
HEDDLE_DEVICE void put_back_empty(float4* to) {
  const float empty = __uint_as_float(kEmptyWord);
  store_kept(to, float4{empty, empty, empty, empty});
}

HEDDLE_DEVICE uint32_t top_bits(float4 x) {
  return max_of(max_of(__float_as_uint(x.x), __float_as_uint(x.y)), max_of(__float_as_uint(x.z), __float_as_uint(x.w)));
}

// The words at at(0), at(1), ..., all under way at once; returns kEmptyWord where one is missing. Without a branch:
// between branches the loads would be waited for one by one (15 slots took 3.5 us on an H200 where
// 0.8 are enough).
template <class Words, int kMost, class At>
HEDDLE_DEVICE uint32_t load_all(Words (&x)[kMost], const At& at) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) x[i] = load_relaxed(at(i));
#pragma unroll
  for (int i = 0; i < kMost; ++i) top = max_of(top, top_bits(x[i]));
  return top;
}
template <class Words, int kMost, class At>
HEDDLE_DEVICE void await_all(Words (&x)[kMost], const At& at) {
  while (load_all(x, at) == kEmptyWord) continue;
}

// Another NaN where it would look empty; arithmetic never gives that one, a hook's own bits could.
HEDDLE_DEVICE float not_empty(float x) { return is_empty(x) ? __uint_as_float(0x7fffffffu) : x; }
HEDDLE_DEVICE void publish(float* to, float x) { store_relaxed(to, not_empty(x)); }
HEDDLE_DEVICE void publish(float2* to, float2 x) { store_relaxed(to, float2{not_empty(x.x), not_empty(x.y)}); }
HEDDLE_DEVICE void publish(float4* to, float4 x) {
  store_kept(to, float4{not_empty(x.x), not_empty(x.y), not_empty(x.z), not_empty(x.w)});
}

// --- joining --------------------------------------------------------------------------------

// A slot has the rows of all kv heads that a decode CTA reads abreast: this team's of an item's first one, and how far
// they are from the next one's.
template <class Spec>
inline constexpr int64_t kSlotRows = int64_t(Spec::kTile.rows) * Team<Spec>::kTeams;
template <class Spec>
HEDDLE_DEVICE int64_t slot_begin(const WorkItem& item) {
  return item.partial * kSlotRows<Spec> + Team<Spec>::index() * Spec::kTile.rows;
}

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

  HEDDLE_DEVICE float base() const { return max2 == negative_infinity() ? 0.0f : max2; }
  // Before states of at most `top` are added.
  HEDDLE_DEVICE void raise(float top) {
    if constexpr (!Hooks::use_softmax) return;
    const float from = max2;
    max2 = fmaxf(max2, top);
    const float factor = exp2_approx(from - base());
    sum *= factor;
    o = o * factor;
  }
  // What a state weighs, and what it adds to the sum.
  HEDDLE_DEVICE float weight_of(float lse2) const { return Hooks::use_softmax ? exp2_approx(lse2 - base()) : 1.0f; }
  static HEDDLE_DEVICE float sum_of(float lse2, float weight) {
    return Hooks::use_softmax ? weight : kCountsKeys<Hooks> ? exp2_approx(lse2) : 0.0f;
  }
  HEDDLE_DEVICE void add(float lse2, float4 x) {
    const float weight = weight_of(lse2);
    sum += sum_of(lse2, weight);
    o = o + x * weight;
  }
};

// Lanes that stand side by side on one row when states are joined: four columns each, some idle where
// head_dim is not a power of two.
template <int kHeadDim>
HEDDLE_DEVICE constexpr int row_lanes() {
  int lanes = 4;
  while (lanes < 32 && lanes * 4 < kHeadDim) lanes *= 2;
  return lanes * 4 >= kHeadDim ? lanes : (kHeadDim / 4 + 31) / 32 * 32;
}

// --- shared prefixes ------------------------------------------------------------------------

// Where the states of a row's shared prefixes lie, one behind the other: published by append, taken by decode, which runs
// beside it. A kernel that is waited for has started in front of the one that waits, and waits for none behind it.
template <class Spec>
HEDDLE_DEVICE int64_t prefix_row(const AttentionParams& p, const HookContext& context) {
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(p.plan);
  return (int64_t(context.q_row - header.prefix_row_begin) * p.num_kv_heads * Spec::kGroup + context.qo_head) *
         header.prefix_states;
}

// Adds so many of them, at least one, four columns, in their order. Every word of o has one reader, who empties it;
// words of lse have several.
template <class Spec, class Hooks>
HEDDLE_DEVICE void add_prefixes(JoinedState<Hooks>& state, const AttentionParams& p, const HookContext& context, int column,
                                int num_states) {
  constexpr int kAhead = 8;  // under way, by registers
  const int64_t row = prefix_row<Spec>(p, context);
#pragma unroll 1
  for (int begin = 0; begin < num_states; begin += kAhead) {
    // The last one stands in for those behind it.
    const auto slot = [&](int i) { return row + min_of(begin + i, num_states - 1); };
    const auto o_at = [&](int i) { return reinterpret_cast<float4*>(p.prefix_o + slot(i) * Spec::kHeadDimVo + column); };
    float lse2[kAhead];
    float4 x[kAhead];
    bool is_missing;
    do {
      is_missing = load_all(x, o_at) == kEmptyWord;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) is_missing |= is_empty(lse2[i] = load_relaxed(p.prefix_lse + slot(i)));
    } while (is_missing);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      put_back_empty(o_at(i));
      if (begin + i >= num_states) continue;
      state.raise(lse2[i]);
      state.add(lse2[i], x[i]);
    }
  }
}

// Threads 0 to `threads` - 1, of decode those of the team, after all of them have read the slots that `item` joins.
template <class Spec>
HEDDLE_DEVICE void empty_lse(const AttentionParams& p, const WorkItem& item, int threads) {
#pragma unroll 1
  for (int i = Team<Spec>::thread(); i < item.join * Spec::kTile.rows; i += threads) {
    const int64_t row = Team<Spec>::kTeams == 1 ? i : i / Spec::kTile.rows * kSlotRows<Spec> + i % Spec::kTile.rows;
    if (i % Spec::kTile.rows < item.num_rows) put_back_empty(p.partial_lse + slot_begin<Spec>(item) + row);
  }
}

}  // namespace heddle
