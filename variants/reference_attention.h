// The definition of attention here: whole rows, double precision, no tiles, no chunks, no merging.
//
// Every kernel is held against it. Hooks is a struct that the engine renders (or a test writes by
// hand) with Real = double:
//
//   static constexpr bool has_query_transform, has_key_transform, has_value_transform,
//       has_logits_transform, has_logits_mask, has_output_transform, has_initial_state,
//       use_softmax;
//   static constexpr RowInput query_pair, key_pair, value_pair;
//   Real query_transform(Real x, Real pair, int dim, const HookContext&) const;  // key_, value_
//   too Real logits_transform(Real logit, const HookContext&) const; bool logits_mask(Real logit,
//   const HookContext&) const; Real output_transform(Real x, int dim, const HookContext&) const;
//   Real initial_state(const HookContext&) const;
//
// A function whose has_... is false need not exist.
//
// This text is also compiled at run time beside rendered hooks, so it stands on the standard
// library and `templates` alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "templates/abi.h"
#include "templates/hook_context.h"

namespace heddle {

// One request.
struct ReferenceProblem {
  int num_qo_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;     // of q and k
  int head_dim_vo = 0;  // of v and o; 0: head_dim
  int request = 0;
  int qo_begin = 0;  // the request's first row in q and o of the batch: what hooks see as q_row
  int qo_len = 0;
  int kv_len = 0;
  int row_begin = 0;  // q, o and lse hold num_rows of its rows, from this one on
  int num_rows = -1;  // -1: all
  double sm_scale = 1;
  MaskBounds mask;
  const std::int32_t* first_keys = nullptr;  // [num_rows]: row i sees keys [first_keys[i], end_keys[i]), and of those
  const std::int32_t* end_keys = nullptr;    // [num_rows] what the mask keeps; null: all that the mask keeps
  // f16 or bf16: round just where a tensor-core kernel must on its way to the output (transformed q,
  // k and v rows, weights relative to the row's largest), everything else in double. What such a
  // plain computation loses is the yardstick for a kernel's error. The output itself stays in
  // double: its own rounding is known beforehand. f32: round nothing.
  DType rounding = DType::f32;
  const double* q = nullptr;  // [num_rows, num_qo_heads, head_dim]
  const double* k = nullptr;  // [kv_len, num_kv_heads, head_dim]
  const double* v = nullptr;  // [kv_len, num_kv_heads, head_dim_vo]
  double* o = nullptr;        // [num_rows, num_qo_heads, head_dim_vo]
  double* lse = nullptr;      // [num_rows, num_qo_heads], natural log; may be null

  int vo_dim() const { return head_dim_vo > 0 ? head_dim_vo : head_dim; }
};

namespace reference_detail {

// To the nearest value of a 16-bit type, ties to even.
inline double rounded(DType dtype, double x) {
  if (dtype != DType::bf16 && dtype != DType::f16) return x;
  if (x == 0 || !std::isfinite(x)) return x;
  const int digits = dtype == DType::bf16 ? 8 : 11;
  const int least = dtype == DType::bf16 ? -133 : -24;  // exponent of the smallest subnormal
  int exponent = std::ilogb(x) + 1 - digits;
  if (exponent < least) exponent = least;
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  if (dtype == DType::f16 && std::fabs(y) > 65504) return std::copysign(INFINITY, x);
  return y;
}

// In 64 bit: bounds reach up to kUnbounded.
inline bool is_kept(const MaskBounds& mask, std::int64_t q_pos, std::int64_t kv_pos) {
  if (mask.causal && kv_pos > q_pos) return false;
  const bool in_window = q_pos - kv_pos <= mask.window_left && kv_pos - q_pos <= mask.window_right;
  return in_window || kv_pos < mask.sink;
}

// to[d] = transform(from[d], its partner, d) for one row; from and to must not overlap.
template <class Transform>
void transform_row(const double* from, double* to, int head_dim, const RowInput& input,
                   Transform transform) {
  double scale = 1;
  if (input.rms_eps >= 0) {
    double sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += from[d] * from[d];
    scale = 1 / std::sqrt(sum / head_dim + input.rms_eps);
  }
  for (int d = 0; d < head_dim; ++d) {
    const double other =
        input.pair == kNoPair ? 0.0 : from[partner_of(input, d, head_dim)] * scale;
    to[d] = transform(from[d] * scale, other, d);
  }
}

// The rows of K and V of one kv head, transformed: [kv_len, head_dim] and [kv_len, head_dim_vo].
struct KeyRows {
  std::vector<double> k, v;
};

template <class Hooks>
KeyRows key_rows(const Hooks& hooks, const ReferenceProblem& p, int kv_head) {
  const std::int64_t k_dim = p.head_dim, v_dim = p.vo_dim();
  KeyRows rows;
  rows.k.resize(static_cast<std::size_t>(p.kv_len * k_dim));
  rows.v.resize(static_cast<std::size_t>(p.kv_len * v_dim));
  const int group = p.num_qo_heads / p.num_kv_heads;
  for (int j = 0; j < p.kv_len; ++j) {
    const HookContext at{p.request, kv_head * group, kv_head, -1, j, -1, p.qo_len, p.kv_len};
    const std::int64_t from = static_cast<std::int64_t>(j) * p.num_kv_heads + kv_head;
    const auto key = [&](double x, double pair, int d) -> double {
      if constexpr (Hooks::has_key_transform)
        return rounded(p.rounding, hooks.key_transform(x, pair, d, at));
      else
        return (void)pair, (void)d, x;
    };
    const auto value = [&](double x, double pair, int d) -> double {
      if constexpr (Hooks::has_value_transform)
        return rounded(p.rounding, hooks.value_transform(x, pair, d, at));
      else
        return (void)pair, (void)d, x;
    };
    transform_row(p.k + from * k_dim, rows.k.data() + j * k_dim, p.head_dim, Hooks::key_pair, key);
    transform_row(p.v + from * v_dim, rows.v.data() + j * v_dim, p.vo_dim(), Hooks::value_pair, value);
  }
  return rows;
}

struct KeptKey {
  int kv_pos;
  double logit;
};

// The keys that row `row` of q keeps with their final logits.
template <class Hooks>
std::vector<KeptKey> kept_keys(const Hooks& hooks, const ReferenceProblem& p, int row, HookContext at,
                               const std::vector<double>& q, const KeyRows& rows) {
  std::vector<KeptKey> kept;
  for (int j = 0; j < p.kv_len; ++j) {
    if (!is_kept(p.mask, at.q_pos, j)) continue;
    if (p.first_keys != nullptr && (j < p.first_keys[row] || j >= p.end_keys[row])) continue;
    at.move_to_key(j);
    const double* k = rows.k.data() + static_cast<std::int64_t>(j) * p.head_dim;
    double logit = 0;
    for (int d = 0; d < p.head_dim; ++d) logit += q[static_cast<std::size_t>(d)] * k[d];
    logit *= p.sm_scale;
    if constexpr (Hooks::has_logits_transform) logit = hooks.logits_transform(logit, at);
    if constexpr (Hooks::has_logits_mask) {
      if (!hooks.logits_mask(logit, at)) continue;
    }
    kept.push_back({j, logit});
  }
  return kept;
}

// Turns logits into weights that sum to 1 with the initial state's; returns lse. A softmax over
// nothing (no key, or logits that are all -inf) weighs nothing.
inline double soften(std::vector<KeptKey>& kept, double initial_logit, DType rounding) {
  double largest = initial_logit;
  for (const KeptKey& key : kept) {
    if (key.logit > largest || std::isnan(key.logit)) largest = key.logit;
  }
  if (largest == -std::numeric_limits<double>::infinity()) {
    kept.clear();
    return largest;
  }
  double sum = std::exp(initial_logit - largest);
  for (const KeptKey& key : kept) sum += std::exp(key.logit - largest);
  for (KeptKey& key : kept) key.logit = rounded(rounding, std::exp(key.logit - largest)) / sum;
  return largest + std::log(sum);
}

// One row of one head. Without softmax the weights are the logits themselves, and lse only says
// whether the row kept a key: 0 or -inf.
template <class Hooks>
void attend_row(const Hooks& hooks, const ReferenceProblem& p, const KeyRows& rows, int row,
                int qo_head) {
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  const int kv_head = qo_head / (p.num_qo_heads / p.num_kv_heads);
  const int token = p.row_begin + row;
  const HookContext at{p.request, qo_head,            kv_head,  p.kv_len - p.qo_len + token,
                       -1,        p.qo_begin + token, p.qo_len, p.kv_len};
  const std::int64_t index = static_cast<std::int64_t>(row) * p.num_qo_heads + qo_head;
  std::vector<double> q(static_cast<std::size_t>(p.head_dim));
  transform_row(p.q + index * p.head_dim, q.data(), p.head_dim, Hooks::query_pair,
                [&](double x, double pair, int d) -> double {
                  if constexpr (Hooks::has_query_transform) {
                    return rounded(p.rounding, hooks.query_transform(x, pair, d, at));
                  } else {
                    return (void)pair, (void)d, x;
                  }
                });
  std::vector<KeptKey> kept = kept_keys(hooks, p, row, at, q, rows);

  double lse = kept.empty() ? minus_infinity : 0.0;
  if constexpr (Hooks::use_softmax) {
    double initial_logit = minus_infinity;
    if constexpr (Hooks::has_initial_state) initial_logit = hooks.initial_state(at);
    lse = soften(kept, initial_logit, p.rounding);
  } else {
    for (KeptKey& key : kept) key.logit = rounded(p.rounding, key.logit);
  }
  if (p.lse != nullptr) p.lse[index] = lse;

  double* o = p.o + index * p.vo_dim();
  for (int d = 0; d < p.vo_dim(); ++d) o[d] = 0;
  if (lse == minus_infinity) return;  // nothing to transform either: the output is exactly 0
  for (const KeptKey& key : kept) {
    const double* v = rows.v.data() + static_cast<std::int64_t>(key.kv_pos) * p.vo_dim();
    for (int d = 0; d < p.vo_dim(); ++d) o[d] += key.logit * v[d];
  }
  if constexpr (Hooks::has_output_transform) {
    for (int d = 0; d < p.vo_dim(); ++d) o[d] = hooks.output_transform(o[d], d, at);
  }
}

}  // namespace reference_detail

// Requires: num_kv_heads divides num_qo_heads; no lengths below 0.
template <class Hooks>
void reference_attention(const Hooks& hooks, const ReferenceProblem& p) {
  const int group = p.num_kv_heads > 0 ? p.num_qo_heads / p.num_kv_heads : 0;
  for (int kv_head = 0; kv_head < p.num_kv_heads; ++kv_head) {
    const reference_detail::KeyRows rows = reference_detail::key_rows(hooks, p, kv_head);
    for (int row = 0; row < (p.num_rows < 0 ? p.qo_len : p.num_rows); ++row) {
      for (int g = 0; g < group; ++g) {
        reference_detail::attend_row(hooks, p, rows, row, kv_head * group + g);
      }
    }
  }
}

}  // namespace heddle
