// From logits in mma fragments to weights: scale, logits_transform, mask, online softmax.
//
// State is in the log2 domain: max2 = max(logit) * log2(e), so that a weight is one ex2. A row
// that has seen nothing has max2 = -inf and sum = 0; -inf is never subtracted from itself. A
// variant without softmax has weights = transformed logits, no max and no sum.
//
// Fragment of one m16n8 block: element e of lane (r = lane / 4, c = lane % 4) is row r + 8 * (e / 2),
// column 2 * c + e % 2.
#pragma once

#include "templates/affine_logits.cuh"
#include "templates/capped_logits.cuh"
#include "templates/four_logits.cuh"
#include "templates/kept_columns.cuh"
#include "templates/work.cuh"

namespace heddle {

struct RowState {
  float max2;
  float sum;  // this lane's columns only, until finish_sum
  float shift = -0.0f;  // what this lane's logits of the tile at hand lack, in the log2 domain: templates/affine_logits.cuh
};

HEDDLE_DEVICE RowState empty_row_state() { return {negative_infinity(), 0.0f}; }

// What hooks and masks need to know of one row.
struct RowInfo {
  HookContext context;
  KeyRange keys;
};

// Packed row -> its place in the batch. Rows past the tile's end repeat its last row: their
// results are dropped, but hooks must never see an index out of range.
template <int kGroup>
HEDDLE_DEVICE RowInfo row_info(const MaskBounds& mask, const WorkItem& item, int kv_head, int row) {
  const int packed = item.row_begin + min_of(row, item.num_rows - 1);
  const int token = packed / kGroup;
  RowInfo info;
  info.context = {item.request,
                  kv_head * kGroup + packed % kGroup,
                  kv_head,
                  item.kv_len - item.qo_len + token,
                  -1,
                  item.qo_begin + token,
                  item.qo_len,
                  item.kv_len};
  info.keys = key_range(mask, info.context.q_pos, item.kv_len);
  return info;
}

// The same where the batch gives the rows' ranges. Only a mask asks for them.
template <class Spec>
HEDDLE_DEVICE void take_given_range(RowInfo& info, const PlanHeader* header) {
  if constexpr (Spec::kRowsGiven) info.keys = given_range(header, info.context.q_row);
}

HEDDLE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
}
HEDDLE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kFullMask, x, 1);
  return x + __shfl_xor_sync(kFullMask, x, 2);
}

// Whether the free mask is asked of tiles that the declared one leaves whole.
template <class Hooks>
inline constexpr bool kMasksEveryTile = Hooks::has_logits_mask && !Hooks::masks_new_keys_only;

// Whether hooks take logits that are scaled; else the softmax's own constant has the scale.
template <class Hooks>
inline constexpr bool kScalesLogits = (Hooks::has_logits_transform || !Hooks::use_softmax) && !kKeepsLogitScale<Hooks>;

// Whether logits of tiles that need no mask change too.
template <class Hooks>
inline constexpr bool kChangesEveryLogit =
    Hooks::has_logits_transform || kScalesLogits<Hooks> || kMasksEveryTile<Hooks>;

// Whether tiles without a mask may leave their logits' cap to the softmax.
template <class Hooks>
inline constexpr bool kCapsLogits = Hooks::logits_are_capped && Hooks::use_softmax && !kMasksEveryTile<Hooks>;

// What turns logits as the softmax takes them into its log2 domain.
template <class Hooks>
HEDDLE_DEVICE float logit_to_log2(float sm_scale) {
  return kScalesLogits<Hooks> ? kLog2e : sm_scale * kLog2e;
}

// Without softmax a sum says nothing of how many keys a row has kept; output_transform needs to know
// whether it kept any, so RowState::sum counts them then.
template <class Hooks>
inline constexpr bool kCountsKeys = !Hooks::use_softmax && Hooks::has_output_transform;

// logits_transform of one row in two blocks that lie side by side, in place. What is dropped is a harmless 0 meanwhile:
// it could be no number at all.
template <bool kMasked, int kBlocks, int kValues, class Hooks>
HEDDLE_DEVICE void transform_four(float (&s)[kBlocks][kValues], int row, int block, const KeptColumns<kBlocks>& kept,
                                  const HookContext& context, float sm_scale, const Hooks& hooks) {
  static_assert(kBlocks % 2 == 0, "blocks come in pairs: 16 keys are the least that a product takes");
  hook_math::FourLogits logits{};
  logits.factor = sm_scale;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float logit = s[block + i / 2][row * 2 + i % 2];
    logits.x[i] = !kMasked || kept.contains(block + i / 2, i % 2) ? logit : 0.0f;
  }
  const hook_math::FourLogits transformed = hooks.logits_transform(logits, context);
#pragma unroll
  for (int i = 0; i < 4; ++i) s[block + i / 2][row * 2 + i % 2] = transformed[i];
}

// What an affine logits_transform makes of a row: the same in all tiles. A row that sees nothing stands at the first key,
// where `kMasked` says that there may be such.
template <bool kMasked, class Hooks>
HEDDLE_DEVICE AffineRow<Hooks> affine_row(const RowInfo& row, float sm_scale, const Hooks& hooks) {
  if constexpr (Hooks::logits_are_affine) {
    HookContext context = row.context;
    if (kMasked && row.keys.is_empty()) context.q_pos = 0;
    return AffineRow<Hooks>(hooks, context, sm_scale);
  }
  return {};
}

// An affine logits_transform of one row, in place. With softmax it leaves out what the row's logits have in common.
template <int kBlocks, int kValues, class Hooks>
HEDDLE_DEVICE void transform_affine(float (&s)[kBlocks][kValues], int row, const AffineRow<Hooks>& affine, float common) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
    for (int i = 0; i < 2; ++i)
      s[block][row * 2 + i] = affine.logit(s[block][row * 2 + i], block * 8 + i, kShiftsRows<Hooks> ? -0.0f : common);
}

// Hooks and masks on raw dot products, in place. Afterwards s holds, with softmax, logits that still have to be
// multiplied by logit_to_log2() and to get their row's shift; without, the weights themselves.
template <bool kMasked, int kBlocks, int kValues, class Hooks>
HEDDLE_DEVICE void apply_variant(float (&s)[kBlocks][kValues], const RowInfo (&rows)[kValues / 2],
                                 const AffineRow<Hooks> (&affine)[kValues / 2], RowState (&state)[kValues / 2],
                                 int first_key, float sm_scale, const Hooks& hooks) {
  if constexpr (!kMasked && !kChangesEveryLogit<Hooks>) return;
  constexpr bool kAsksMask = kMasked ? Hooks::has_logits_mask : kMasksEveryTile<Hooks>;
  constexpr bool kAsksTransform = Hooks::has_logits_transform && !Hooks::logits_are_affine;
  constexpr bool kAsksOfSeenOnly = kMasked && (kAsksTransform || kAsksMask) && !Hooks::logits_are_plain;
  constexpr int kRows = kValues / 2;
  const float dropped = Hooks::use_softmax ? negative_infinity() : 0.0f;
  const int column = lane_index() % 4 * 2;
  HookContext contexts[kRows];
  float first_distance[kRows], common[kRows];
  KeptColumns<kBlocks> kept[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    contexts[r] = rows[r].context;
    // A row that sees nothing stands before the first key; there it sees that one.
    if (kAsksOfSeenOnly && rows[r].keys.is_empty()) contexts[r].q_pos = 0;
    first_distance[r] = static_cast<float>(contexts[r].q_pos - first_key - column);
    if constexpr (kMasked) kept[r] = KeptColumns<kBlocks>(rows[r].keys, first_key + column);
    if constexpr (Hooks::logits_are_affine) {
      first_distance[r] = static_cast<float>(affine[r].q_pos - first_key - column);
      common[r] = affine[r].common(first_distance[r]);
      transform_affine(s, r, affine[r], common[r]);
      if constexpr (kShiftsRows<Hooks>) state[r].shift = common[r] * logit_to_log2<Hooks>(sm_scale);
    }
  }
  if constexpr (Hooks::transforms_by_four) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2)
        transform_four<kMasked>(s, r, block, kept[r], contexts[r], sm_scale, hooks);
  }
  const auto ask = [&](int block, int e) {
    bool keep = kMasked ? kept[e / 2].contains(block, e % 2) : true;
    const int of_lane = block * 8 + e % 2;
    float logit = s[block][e];
    if constexpr (kScalesLogits<Hooks> && !Hooks::transforms_by_four && !Hooks::logits_are_affine) logit *= sm_scale;
    HookContext context = contexts[e / 2];
    context.kv_pos = first_key + column + of_lane;
    context.kv_distance = first_distance[e / 2] - static_cast<float>(of_lane);
    // Tiles begin at a multiple of 8. The compiler would not see that from kv_pos, and load a byte for each bit.
    context.kv_byte = first_key / 8 + block;
    context.kv_bit = column + e % 2;
    // What is dropped is asked of a key that the row sees, and of a harmless logit: a branch around the hook would
    // wait for each of its loads by itself.
    if (kAsksOfSeenOnly && !keep) {
      context.move_to_key(rows[e / 2].keys.some());
      logit = 0.0f;
    }
    if constexpr (kAsksTransform && !Hooks::transforms_by_four) logit = hooks.logits_transform(logit, context);
    if constexpr (kAsksMask) {
      const float whole = kShiftsRows<Hooks> ? logit + common[e / 2] : logit;
      keep &= hooks.logits_mask(kScalesLogits<Hooks> ? whole : whole * sm_scale, context);
    }
    if constexpr (kCountsKeys<Hooks>) state[e / 2].sum += keep ? 1.0f : 0.0f;
    s[block][e] = keep ? logit : dropped;
  };
  const bool some_see = !kAsksOfSeenOnly || !rows[0].keys.is_empty() || !rows[kRows - 1].keys.is_empty();
  constexpr int kAtOnce = kAsksOfSeenOnly ? 2 : kBlocks;  // the branch keeps apart loads that registers do not reach for
#pragma unroll
  for (int first = 0; first < kBlocks; first += kAtOnce) {
    if (some_see) {
#pragma unroll
      for (int block = first; block < first + kAtOnce && block < kBlocks; ++block)
        for (int e = 0; e < kValues; ++e) ask(block, e);
    }
#pragma unroll
    for (int block = first; block < first + kAtOnce && block < kBlocks; ++block)
      for (int e = 0; e < kValues; ++e) s[block][e] = some_see ? s[block][e] : dropped;
  }
}

// The same where rows are placed anew in each tile.
template <bool kMasked, int kBlocks, int kValues, class Hooks>
HEDDLE_DEVICE void apply_variant(float (&s)[kBlocks][kValues], const RowInfo (&rows)[kValues / 2],
                                 RowState (&state)[kValues / 2], int first_key, float sm_scale, const Hooks& hooks) {
  AffineRow<Hooks> affine[kValues / 2];
  for (int r = 0; r < kValues / 2; ++r) affine[r] = affine_row<kMasked>(rows[r], sm_scale, hooks);
  apply_variant<kMasked>(s, rows, affine, state, first_key, sm_scale, hooks);
}

// What logits are held against: 0 where a row has seen nothing.
HEDDLE_DEVICE float softmax_base(float max2) { return max2 == negative_infinity() ? 0.0f : max2; }

// The largest logit of one row (`half`) in this lane's columns.
template <int kBlocks, int kValues>
HEDDLE_DEVICE float largest_logit(const float (&s)[kBlocks][kValues], int half) {
  float top = s[0][half * 2];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
    top = fmaxf(top, fmaxf(s[block][half * 2], s[block][half * 2 + 1]));
  return top;
}

// One step of the online softmax over one row of a tile's logits, in two parts. First its maximum, from what is the largest
// logit in this lane: what comes back is what the accumulators of the row must be multiplied by. `to_log2`:
// logit_to_log2(), or a CappedLog2.
template <class Hooks, class Log2>
HEDDLE_DEVICE float raise_max(float top, RowState& state, const Log2& to_log2) {
  float top2;
  if constexpr (kShiftsRows<Hooks>) {
    if (top == negative_infinity()) state.shift = 0.0f;  // what no key takes may be no number
    top2 = quad_max(fmaf(top, log2_factor(to_log2, top), state.shift));
  } else {
    top = quad_max(top);
    top2 = top * log2_factor(to_log2, top);
  }
  const float max2 = fmaxf(state.max2, top2);
  const float rescale = exp2_approx(state.max2 - softmax_base(max2));
  state.max2 = max2;
  return rescale;
}
// Then s becomes weights, and the sum takes them up.
template <class Hooks, class Log2, int kBlocks, int kValues>
HEDDLE_DEVICE void weigh_row(float (&s)[kBlocks][kValues], int half, RowState& state, float rescale, const Log2& to_log2) {
  const float base = softmax_base(state.max2);
  const float below = (kShiftsRows<Hooks> ? state.shift : -0.0f) - base;
  float sum = 0.0f;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int e = half * 2; e < half * 2 + 2; ++e) {
      s[block][e] = exp2_approx(fmaf(s[block][e], log2_factor(to_log2, s[block][e]), below));
      sum += s[block][e];
    }
  }
  state.sum = fmaf(state.sum, rescale, sum);
}

// The step over all rows of this lane.
template <class Hooks, int kBlocks, int kValues>
HEDDLE_DEVICE void update_softmax(float (&s)[kBlocks][kValues], RowState (&state)[kValues / 2],
                                  float (&rescale)[kValues / 2], float to_log2) {
#pragma unroll
  for (int half = 0; half < kValues / 2; ++half) {
    rescale[half] = raise_max<Hooks>(largest_logit(s, half), state[half], to_log2);
    weigh_row<Hooks>(s, half, state[half], rescale[half], to_log2);
  }
}

// Weights of 16 keys as the A operand of P V.
template <DType kType>
HEDDLE_DEVICE void pack_weights(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = Element<kType>::pack(left[0], left[1]);
  a[1] = Element<kType>::pack(left[2], left[3]);
  a[2] = Element<kType>::pack(right[0], right[1]);
  a[3] = Element<kType>::pack(right[2], right[3]);
}

// The last step of a row, wherever it happens: the initial state joins as one more key of value 0,
// then output_transform. lse is natural log; without softmax it is 0, or -inf for a row without a key.
template <class Hooks>
struct RowResult {
  float scale;  // multiplies the accumulated o
  float lse;
};

template <class Hooks>
HEDDLE_DEVICE RowResult<Hooks> finish_row(float max2, float sum, const HookContext& context,
                                          const Hooks& hooks) {
  if constexpr (!Hooks::use_softmax)
    return {1.0f, kCountsKeys<Hooks> && sum == 0.0f ? negative_infinity() : 0.0f};
  float lse2 = sum > 0.0f ? max2 + __log2f(sum) : sum == 0.0f ? negative_infinity() : sum;
  float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
  if constexpr (Hooks::has_initial_state) {
    const float sink2 = hooks.initial_state(context) * kLog2e;
    const float top = fmaxf(lse2, sink2);
    if (top != negative_infinity()) {
      const float with_sink = top + __log2f(exp2_approx(lse2 - top) + exp2_approx(sink2 - top));
      scale *= exp2_approx(lse2 - with_sink);
      lse2 = with_sink;
    }
  }
  return {scale, lse2 * kLn2};
}

}  // namespace heddle
