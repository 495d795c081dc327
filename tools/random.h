// Seeded values: the same on every machine, cheap enough to fill caches of gigabytes.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <vector>

#include "tools/half.h"

namespace heddle::tools {

// splitmix64: a good generator in one line of state.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }  // [0, 1)
  int below(int bound) { return int(uniform() * bound); }      // [0, bound)
  double normal() {
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

inline int pick(Random& random, std::initializer_list<int> values) {
  return values.begin()[random.below(static_cast<int>(values.size()))];
}

// Draws standard normal values of a 16-bit type from a table, four for each call of the generator.
class NormalSource {
 public:
  NormalSource(DType dtype, std::uint64_t seed) : random_(seed), table_(1 << 16) {
    Random values(12345);
    for (std::uint16_t& entry : table_) entry = from_float(float(values.normal()), dtype);
  }

  void fill(std::uint16_t* out, std::size_t count) {
    for (std::size_t i = 0; i < count;) {
      std::uint64_t word = random_.bits();
      for (int part = 0; part < 4 && i < count; ++part, word >>= 16)
        out[i++] = table_[word & 0xffff];
    }
  }

 private:
  Random random_;
  std::vector<std::uint16_t> table_;
};

}  // namespace heddle::tools
