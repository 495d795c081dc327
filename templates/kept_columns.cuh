// A row's bounds as bits of the columns that a lane holds in mma fragments (templates/softmax.cuh).
#pragma once

#include "templates/work.cuh"

namespace heddle {

// Which of this lane's columns in a row of fragments are kept, a bit each: column e of block b is bit
// 2 b + e. Two bit masks made once a row cost a bound that lies in a tile two instructions an
// element, where comparing positions took five.
template <int kBlocks>
struct KeptColumns {
  static constexpr int kWords = (kBlocks * 2 + 31) / 32;
  uint32_t words[kWords];

  KeptColumns() = default;
  HEDDLE_DEVICE KeptColumns(const KeyRange& keys, int first_column) {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = (below(keys.hi - first_column, i) & ~below(keys.lo - first_column, i)) |
                 below(keys.sink - first_column, i);
  }
  HEDDLE_DEVICE bool contains(int block, int e) const {
    const int bit = block * 2 + e;
    return words[bit / 32] >> bit % 32 & 1;
  }

 private:
  // Columns in front of `end` have bits: two in every eight.
  static HEDDLE_DEVICE uint32_t below(int end, int word) {
    const int count = end <= 0 ? 0 : end / 8 * 2 + min_of(end % 8, 2);
    const int here = min_of(count - word * 32, 32);
    return here <= 0 ? 0 : 0xffffffffu >> (32 - here);
  }
};

}  // namespace heddle
