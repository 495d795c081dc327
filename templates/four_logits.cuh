// Four logits of one row on their way through logits_transform, where that is one expression of the logit, params and
// numbers with a tanh in it (Hooks::transforms_by_four). They share a reciprocal, of which a GPU does few. Factors and
// summands gather aside, the same for all keys, so that the compiler takes them out of the loops:
//
//   cap * tanh(logit / cap) of raw dot products s:  e = 2^(s k), one reciprocal for four 1 / (1 + e), cap - 2 cap r
//
// Two sigmoids that share one took more instructions than they saved special functions (678 a tile where it was 509).
//
// A logit that is not a number makes its three neighbours so; their row's sum is none anyway.
#pragma once

#include "templates/hook_math.cuh"

namespace heddle::hook_math {

struct FourLogits {
  float x[4];
  float factor = 1.0f, summand = 0.0f;  // the logits are x * factor + summand

  HEDDLE_DEVICE float operator[](int i) const { return fmaf(x[i], factor, summand); }
  HEDDLE_DEVICE FourLogits scaled(float by) const { return {{x[0], x[1], x[2], x[3]}, factor * by, summand * by}; }
  HEDDLE_DEVICE FourLogits shifted(float by) const { return {{x[0], x[1], x[2], x[3]}, factor, summand + by}; }
};

HEDDLE_DEVICE FourLogits operator*(const FourLogits& a, float b) { return a.scaled(b); }
HEDDLE_DEVICE FourLogits operator*(float a, const FourLogits& b) { return b.scaled(a); }
HEDDLE_DEVICE FourLogits operator/(const FourLogits& a, const RealParam& b) { return a.scaled(b.inverse); }
HEDDLE_DEVICE FourLogits operator/(const FourLogits& a, float b) { return a.scaled(1.0f / b); }
HEDDLE_DEVICE FourLogits operator+(const FourLogits& a, float b) { return a.shifted(b); }
HEDDLE_DEVICE FourLogits operator+(float a, const FourLogits& b) { return b.shifted(a); }
HEDDLE_DEVICE FourLogits operator-(const FourLogits& a, float b) { return a.shifted(-b); }
HEDDLE_DEVICE FourLogits operator-(const FourLogits& a) { return a.scaled(-1.0f); }
HEDDLE_DEVICE FourLogits operator-(float a, const FourLogits& b) { return (-b).shifted(a); }
HEDDLE_DEVICE FourLogits operator+(const FourLogits& a) { return a; }
HEDDLE_DEVICE FourLogits operator/(float a, const FourLogits& b) { return {{a / b[0], a / b[1], a / b[2], a / b[3]}}; }

// min(x, most), but not a number where x is none.
HEDDLE_DEVICE float no_more_than(float most, float x) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
  return x;
}

// 1 - 2 / (1 + e^2x). Where e^2x is held at 2^30 that is 1, and no product of four overflows.
HEDDLE_DEVICE FourLogits tanh(const FourLogits& a) {
  const float rate = a.factor * (2 * kLog2e), offset = a.summand * (2 * kLog2e);
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = 1.0f + exp2_approx(no_more_than(30.0f, fmaf(a.x[i], rate, offset)));
  const float left = y[0] * y[1], right = y[2] * y[3], inverse = reciprocal(left * right);
  const float of_left = inverse * right, of_right = inverse * left;  // their reciprocals
  return {{of_left * y[1], of_left * y[0], of_right * y[3], of_right * y[2]}, -2.0f, 1.0f};
}

HEDDLE_DEVICE FourLogits sigmoid(const FourLogits& a) { return {{sigmoid(a[0]), sigmoid(a[1]), sigmoid(a[2]), sigmoid(a[3])}}; }

}  // namespace heddle::hook_math
