// The plain maths that hooks may use, on the CPU: precise. Included inside a namespace that has
// defined Real (float for the CPU device, double for the reference), hence no include guard.

// Of these hook_math.cuh makes more.
using RealParam = Real;
inline int moving_key_position(const heddle::HookContext& context) { return context.kv_pos; }

inline Real exp2(Real x) { return std::exp2(x); }
inline Real exp(Real x) { return std::exp(x); }
inline Real log2(Real x) { return std::log2(x); }
inline Real log(Real x) { return std::log(x); }
inline Real tanh(Real x) { return std::tanh(x); }
inline Real reciprocal(Real x) { return Real(1) / x; }
inline Real sigmoid(Real x) { return Real(1) / (Real(1) + std::exp(-x)); }
inline Real sin(Real x) { return std::sin(x); }
inline Real cos(Real x) { return std::cos(x); }
inline Real sqrt(Real x) { return std::sqrt(x); }
inline Real rsqrt(Real x) { return Real(1) / std::sqrt(x); }
inline Real pow(Real x, Real y) { return std::pow(x, y); }
template <class T>
inline T abs(T x) {
  return x < 0 ? -x : x;
}
template <class A, class B>
inline auto min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
inline auto max(A a, B b) {
  return a < b ? b : a;
}
