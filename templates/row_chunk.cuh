// 16 bytes of a row of K or V in global memory, changed by key_ or value_transform on the way to where they go.
#pragma once

#include "templates/transform.cuh"

namespace heddle {

// What one thread reads of one row, transformed. `hook(x, pair, dim)`.
template <DType kType, int kHeadDim, RowInput kInput>
struct RowChunk {
  using T = Element<kType>;
  static constexpr int kHalf = (kInput.rotary_dim > 0 ? kInput.rotary_dim : kHeadDim) / 2;
  static constexpr bool kPartnersInChunks = kHalf % kChunkElements == 0;  // of a half split

  static HEDDLE_DEVICE void unpack(uint4 bits, float scale, float (&x)[kChunkElements]) {
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < kChunkElements / 2; ++i) {
      x[2 * i] = T::to_float(static_cast<uint16_t>(words[i])) * scale;
      x[2 * i + 1] = T::to_float(static_cast<uint16_t>(words[i] >> 16)) * scale;
    }
  }
  static HEDDLE_DEVICE int partner_chunk(int chunk) {
    constexpr int kHalfChunks = kHalf / kChunkElements;
    return chunk < kHalfChunks ? chunk + kHalfChunks : chunk < 2 * kHalfChunks ? chunk - kHalfChunks : chunk;
  }
  static HEDDLE_DEVICE void load_partners(const uint16_t* row, int chunk, float scale, const float (&x)[kChunkElements],
                                          float (&pair)[kChunkElements]) {
    if constexpr (kInput.pair == kHalfSplit && kPartnersInChunks) {
      unpack(reinterpret_cast<const uint4*>(row)[partner_chunk(chunk)], scale, pair);
    } else {
#pragma unroll
      for (int e = 0; e < kChunkElements; ++e) {
        if constexpr (kInput.pair == kNoPair) pair[e] = 0.0f;
        if constexpr (kInput.pair == kInterleaved) pair[e] = x[e ^ 1];
        if constexpr (kInput.pair == kHalfSplit)
          pair[e] = T::to_float(row[partner_of(kInput, chunk * kChunkElements + e, kHeadDim)]) * scale;
      }
    }
  }
  template <class Transform>
  static HEDDLE_DEVICE uint4 load(const uint16_t* row, int chunk, const Transform& hook) {
    float scale = 1.0f, x[kChunkElements], pair[kChunkElements];
    if constexpr (kInput.rms_eps >= 0) scale = rms_scale<kType, kHeadDim>(row, kInput.rms_eps);
    unpack(reinterpret_cast<const uint4*>(row)[chunk], scale, x);
    load_partners(row, chunk, scale, x, pair);
#pragma unroll
    for (int e = 0; e < kChunkElements; ++e) x[e] = hook(x[e], pair[e], chunk * kChunkElements + e);
    return {T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7])};
  }
};

}  // namespace heddle
