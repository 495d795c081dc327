// A row's logits where logits_transform is affine (Hooks::logits_are_affine): a * logit + b * kv_distance + c, with a, b
// and c the same for all keys. Called with an Affine, the hook says once a row what they are.
//
// A tile's columns lie a constant apart, so that b * kv_distance is b times the distance of the row's first column, less
// b times a constant. The former, and c, are the same for the whole row: the softmax adds them where it takes the maximum
// away (RowState::shift). Where a is 1 the scale stays with the softmax's own constant too, for
//
//   logit - slope * kv_distance = sm_scale * (dot + column * slope / sm_scale) - slope * first_distance
//
// and of three instructions a logit one is left: 612 in the loop of a tile on wgmma where there were 767.
#pragma once

#include "templates/hook_math.cuh"

namespace heddle {

namespace hook_math {

// logit * of_logit + kv_distance * of_distance + constant. What is not there is a 0 that no infinity makes a NaN, and
// -0.0 as a constant, which the compiler leaves out of a sum.
struct Affine {
  float of_logit, of_distance, constant;

  static HEDDLE_DEVICE float product(float x, float by) { return x == 0.0f ? x : x * by; }
  HEDDLE_DEVICE Affine scaled(float by) const {
    return {product(of_logit, by), product(of_distance, by), product(constant, by)};
  }
  HEDDLE_DEVICE Affine negated() const { return {-of_logit, -of_distance, constant == 0.0f ? -0.0f : -constant}; }
  HEDDLE_DEVICE Affine shifted(float by) const { return {of_logit, of_distance, constant + by}; }
};

template <class T>
concept Number = requires(T x) { static_cast<float>(x); };

HEDDLE_DEVICE Affine operator+(const Affine& a) { return a; }
HEDDLE_DEVICE Affine operator-(const Affine& a) { return a.negated(); }
HEDDLE_DEVICE Affine operator+(const Affine& a, const Affine& b) {
  return {a.of_logit + b.of_logit, a.of_distance + b.of_distance, a.constant + b.constant};
}
HEDDLE_DEVICE Affine operator-(const Affine& a, const Affine& b) { return a + -b; }
HEDDLE_DEVICE Affine operator+(const Affine& a, Number auto b) { return a.shifted(static_cast<float>(b)); }
HEDDLE_DEVICE Affine operator+(Number auto a, const Affine& b) { return b.shifted(static_cast<float>(a)); }
HEDDLE_DEVICE Affine operator-(const Affine& a, Number auto b) { return a.shifted(-static_cast<float>(b)); }
HEDDLE_DEVICE Affine operator-(Number auto a, const Affine& b) { return (-b).shifted(static_cast<float>(a)); }
HEDDLE_DEVICE Affine operator*(const Affine& a, Number auto b) { return a.scaled(static_cast<float>(b)); }
HEDDLE_DEVICE Affine operator*(Number auto a, const Affine& b) { return b.scaled(static_cast<float>(a)); }
HEDDLE_DEVICE Affine operator/(const Affine& a, Number auto b) { return a.scaled(1.0f / static_cast<float>(b)); }
HEDDLE_DEVICE Affine operator/(const Affine& a, const RealParam& b) { return a.scaled(b.inverse); }

}  // namespace hook_math

struct AffineContext : HookContext {
  hook_math::Affine kv_distance = {0.0f, 1.0f, -0.0f};
};

// Whether the softmax adds what a row's logits have in common.
template <class Hooks>
inline constexpr bool kShiftsRows = Hooks::use_softmax && Hooks::logits_are_affine;

// Whether the scale stays with the softmax's own constant. Logits are then counted in dot products.
template <class Hooks>
inline constexpr bool kKeepsLogitScale = kShiftsRows<Hooks> && Hooks::keeps_logit_scale;

// What a row's logits are made of, whatever the tile.
template <class Hooks>
struct AffineRow {
  int q_pos;
  float of_dot, of_distance, constant;

  AffineRow() = default;
  template <class Asked>
  HEDDLE_DEVICE AffineRow(const Asked& hooks, const HookContext& context, float sm_scale) : q_pos(context.q_pos) {
    const hook_math::Affine f = hooks.logits_transform(hook_math::Affine{1.0f, 0.0f, -0.0f}, AffineContext{context});
    const hook_math::Affine counted = kKeepsLogitScale<Hooks> ? f.scaled(hook_math::reciprocal(sm_scale)) : f;
    of_dot = kKeepsLogitScale<Hooks> ? 1.0f : f.of_logit * sm_scale;
    of_distance = counted.of_distance;
    constant = counted.constant;
  }

  // What the logits have in common whose first column is at this distance.
  HEDDLE_DEVICE float common(float first_distance) const {
    return Hooks::has_kv_distance ? of_distance * first_distance + constant : constant;
  }
  // The logit of a dot product `column` columns on. `common`: that, or -0.0 where it is to be added later.
  HEDDLE_DEVICE float logit(float dot, int column, float common) const {
    return dot * of_dot + (Hooks::has_kv_distance ? static_cast<float>(column) * -of_distance + common : common);
  }
};
template <class Hooks>
  requires(!Hooks::logits_are_affine)
struct AffineRow<Hooks> {};

// What hooks are for keys so far away that those with a max_distance take them for equally far (Hooks::has_far_form):
// affine there, with what such hooks make of them in the constant.
template <class Hooks>
struct FarForm {
  static constexpr bool use_softmax = true, has_logits_transform = true, logits_are_affine = true;
  static constexpr bool keeps_logit_scale = Hooks::far_keeps_logit_scale, has_kv_distance = Hooks::far_has_kv_distance;
};

}  // namespace heddle
