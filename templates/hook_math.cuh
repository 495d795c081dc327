// The plain f32 maths that hooks may use, by their usual names, in fast forms.
//
// Error bounds on the GPU (PTX ISA, single-precision approximations): exp and exp2 2 ulp + |x| * 2^-22
// relative; log 2^-21 absolute near 1, else 3 ulp; sin and cos 2^-20 absolute (of kv_pos times a frequency, which
// is put together of two angles, about twice that) for |x| <= 2^24, beyond which neighbouring floats are a turn
// apart; tanh 2^-21 absolute (2.7e-6 where capped_logits.cuh has a polynomial for it); sigmoid, sqrt and rsqrt 3 ulp;
// x / y 2 ulp (a compiler option: runtime/nvrtc.cc); pow that of the CUDA library. The CPU device uses the precise forms of the C library.
#pragma once

#include "templates/hook_context.h"
#include "templates/prelude.cuh"

namespace heddle::hook_math {

// A param that a run gives. Its reciprocal is taken once a thread: division by one is common in hooks
// (logit / params.cap), and each would be a special function.
struct RealParam {
  float value;
  float inverse;

  RealParam() = default;
  HEDDLE_DEVICE RealParam& operator=(float x) {
    value = x;
    inverse = 1.0f / x;
    return *this;
  }
  HEDDLE_DEVICE operator float() const { return value; }
};
template <class T>
HEDDLE_DEVICE float operator/(T x, const RealParam& param) {
  return static_cast<float>(x) * param.inverse;
}

HEDDLE_DEVICE float exp2(float x) { return exp2_approx(x); }
HEDDLE_DEVICE float exp(float x) { return exp2_approx(x * kLog2e); }
HEDDLE_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
HEDDLE_DEVICE float log(float x) { return log2(x) * kLn2; }
HEDDLE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Not tanh.approx: its 2^-11 is more than the weights of an f16 model lose by rounding. A polynomial in place of
// the reciprocal (one special function less, eight instructions more) made soft-capped prefill slower: 345 TFLOP/s
// on an H200 where four special functions a logit, a division among them, gave 366.
HEDDLE_DEVICE float tanh(float x) { return fmaf(-2.0f, reciprocal(1.0f + exp2_approx(x * (2 * kLog2e))), 1.0f); }
HEDDLE_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }
// x less its whole turns: 2 pi in two parts, so that nothing is lost before the rest is small. Adding 1.5 * 2^23
// rounds to a whole number.
HEDDLE_DEVICE float within_a_turn(float x) {
  const float turns = fmaf(x, 0.15915494f, 12582912.0f) - 12582912.0f;
  return fmaf(turns, 1.7484556e-7f, fmaf(turns, -6.2831855f, x));
}
HEDDLE_DEVICE float sin(float x) { return __sinf(within_a_turn(x)); }
HEDDLE_DEVICE float cos(float x) { return __cosf(within_a_turn(x)); }

// kv_pos in transforms of keys and values: an int whose product with a frequency is an angle that knows of the rows
// transformed side by side. The sine and cosine of the first row's angle then serve all of them, turned on by what
// a row is ahead, whose own the compiler makes once a column: four multiplications for two special functions and ten.
struct KeyPosition {
  int first, ahead;
  HEDDLE_DEVICE operator int() const { return first + ahead; }
};
HEDDLE_DEVICE KeyPosition moving_key_position(const HookContext& context) {
  return {context.kv_pos - context.kv_ahead, context.kv_ahead};
}
struct Angle {
  KeyPosition position;
  float frequency;
  HEDDLE_DEVICE operator float() const { return static_cast<float>(position.first + position.ahead) * frequency; }
  HEDDLE_DEVICE float of_first() const { return static_cast<float>(position.first) * frequency; }
  HEDDLE_DEVICE float of_ahead() const { return static_cast<float>(position.ahead) * frequency; }
};
template <class T>
inline constexpr bool kIsReal = false;
template <>
inline constexpr bool kIsReal<float> = true;
template <>
inline constexpr bool kIsReal<double> = true;
template <class T>
  requires kIsReal<T>
HEDDLE_DEVICE Angle operator*(const KeyPosition& position, T frequency) {
  return {position, static_cast<float>(frequency)};
}
template <class T>
  requires kIsReal<T>
HEDDLE_DEVICE Angle operator*(T frequency, const KeyPosition& position) {
  return position * frequency;
}
template <class T>
  requires kIsReal<T>
HEDDLE_DEVICE Angle operator*(const Angle& angle, T factor) {
  return {angle.position, angle.frequency * static_cast<float>(factor)};
}
HEDDLE_DEVICE float sin(const Angle& a) {
  if (a.position.ahead == 0) return sin(a.of_first());
  return fmaf(sin(a.of_first()), cos(a.of_ahead()), cos(a.of_first()) * sin(a.of_ahead()));
}
HEDDLE_DEVICE float cos(const Angle& a) {
  if (a.position.ahead == 0) return cos(a.of_first());
  return fmaf(cos(a.of_first()), cos(a.of_ahead()), -sin(a.of_first()) * sin(a.of_ahead()));
}

HEDDLE_DEVICE float sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
HEDDLE_DEVICE float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
HEDDLE_DEVICE float pow(float x, float y) { return ::powf(x, y); }
template <class T>
HEDDLE_DEVICE auto abs(T x) {
  return x < 0 ? -x : x;
}
template <class A, class B>
HEDDLE_DEVICE auto min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
HEDDLE_DEVICE auto max(A a, B b) {
  return a < b ? b : a;
}

}  // namespace heddle::hook_math
