// The two 16-bit element types on the host, rounded to nearest even, as the tensor cores read them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/types.h"

namespace heddle::tools {

inline constexpr std::uint16_t kHalfNan = 0x7fff;  // a NaN in both types

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return kHalfNan;
  return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float size = 0;
  if (exponent == 31) {
    size =
        fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    size = std::ldexp(float(fraction), -24);
  } else {
    size = std::ldexp(float(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) ? -size : size;
}

inline std::uint16_t float_to_f16(float value) {
  if (std::isnan(value)) return kHalfNan;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::abs(value);
  if (size >= 65520.0f) return sign | 0x7c00;
  int exponent = size > 0 ? std::ilogb(size) : -14;
  if (exponent < -14) exponent = -14;  // subnormal
  // The fraction in units of the last place; a carry runs into the exponent as it should.
  const int units = int(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return sign | std::uint16_t(((exponent + 14) << 10) + units);
}

inline float to_float(std::uint16_t bits, DType dtype) {
  return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

inline std::uint16_t from_float(float value, DType dtype) {
  return dtype == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
}

}  // namespace heddle::tools
