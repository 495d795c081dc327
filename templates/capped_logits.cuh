// Logits under a cap: logits_transform is a * tanh(b * logit), with a and b made of params and numbers
// (Hooks::logits_are_capped). Called with a Cap, the hook says what they are.
//
// Where the logits of a warp's tile are small beside the cap, tanh is an odd polynomial and so cheap that the softmax takes
// it along: of raw dot products s,
//
//   weight = exp2(s * p(s^2) - base)
//
// three multiplications more than without a cap, and its only special function is the softmax's own. Other tiles go through
// four_logits.cuh.
//
// Only the largest logit has to be small, which the softmax looks for anyway. Far below 0 the polynomial leaves tanh, but
// grows as it does; and a cap of 30 or more has made weights there so small, beside a row's largest, that it doesn't count:
// where a row has 2^17 of them, 1.4e-4 of its sum at worst, 2^20 9e-4 (cap 30; with 50 nothing).
#pragma once

#include "templates/hook_math.cuh"

namespace heddle {

namespace hook_math {

// dot * inner, or tanh of that * outer.
struct Cap {
  float inner, outer = 1.0f;
  bool has_tanh = false;

  HEDDLE_DEVICE Cap scaled(float by) const { return has_tanh ? Cap{inner, outer * by, true} : Cap{inner * by}; }
};

HEDDLE_DEVICE Cap operator*(const Cap& a, float b) { return a.scaled(b); }
HEDDLE_DEVICE Cap operator*(float a, const Cap& b) { return b.scaled(a); }
HEDDLE_DEVICE Cap operator/(const Cap& a, const RealParam& b) { return a.scaled(b.inverse); }
HEDDLE_DEVICE Cap operator/(const Cap& a, float b) { return a.scaled(1.0f / b); }
HEDDLE_DEVICE Cap tanh(const Cap& a) { return {a.inner, 1.0f, true}; }

}  // namespace hook_math

// From a tile's dot products to the log2 domain of the softmax, in place of one factor.
class CappedLog2 {
  static constexpr float kReach = 0.45f;  // of the cap; up to there the polynomial is within 2.7e-6 of tanh (minimax)
  static constexpr float kLeastCap = 30.0f;

 public:
  template <class Hooks>
  HEDDLE_DEVICE CappedLog2(const Hooks& hooks, float sm_scale) {
    const hook_math::Cap cap = hooks.logits_transform(hook_math::Cap{sm_scale}, HookContext{});
    const float square = cap.inner * cap.inner, slope = cap.outer * cap.inner * kLog2e;
    of_[0] = slope * 0.99995852f;
    of_[1] = slope * square * -0.33165442f;
    of_[2] = slope * square * square * 0.11609694f;
    grows_ = slope > 0.0f;
    // Nothing is small beside a cap that is none, or whose powers a float does not hold.
    const bool is_cap = cap.outer >= kLeastCap && cap.inner > 0.0f && of_[2] > 1e-37f && of_[2] < 1e30f;
    limit_ = is_cap ? kReach / cap.inner : negative_infinity();
  }

  // Whether a larger dot product has a larger logit.
  HEDDLE_DEVICE bool grows() const { return grows_; }

  // Of a row in a lane whose largest dot product is `top`, with a maximum of `max2` so far.
  HEDDLE_DEVICE bool serves(float top, float max2) const { return top <= limit_ && max2 >= 0.0f; }

  HEDDLE_DEVICE float factor(float s) const {
    const float square = s * s;
    return fmaf(fmaf(of_[2], square, of_[1]), square, of_[0]);
  }

 private:
  float of_[3];  // s, s^3 and s^5
  float limit_;
  bool grows_;
};

// What a logit of the tile is multiplied by on its way to the log2 domain.
HEDDLE_DEVICE float log2_factor(float to_log2, float) { return to_log2; }
HEDDLE_DEVICE float log2_factor(const CappedLog2& to_log2, float logit) { return to_log2.factor(logit); }

}  // namespace heddle
