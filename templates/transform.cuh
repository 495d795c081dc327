// query_, key_ and value_transform: elements are changed in place where they lie (q on its way to
// registers or shared memory, k and v in shared memory after they have landed), so that a hook does
// not care about fragments. With a rotary pair one thread changes both partners.
#pragma once

#include "templates/hook_context.h"
#include "templates/smem_tile.cuh"

namespace heddle {

// What one step handles: kWidth columns from `first` and kWidth from `second` on, so that rotary partners meet
// in one thread, which then makes their sine and cosine once.
template <DType kType, class Tile, RowInput kInput>
struct RowElements {
  using T = Element<kType>;
  static constexpr int kHalf = (kInput.rotary_dim > 0 ? kInput.rotary_dim : Tile::kHeadDim) / 2;
  static constexpr bool kSplit = kInput.pair == kHalfSplit;
  static constexpr int kWidth = kSplit && kHalf % 2 != 0 ? 1 : 2;
  static constexpr int kCount = Tile::kHeadDim / (2 * kWidth);  // of a row

  int first, second;
  bool partners;  // across the two; behind the pairs of a half split the other columns follow
  float x[2][kWidth];

  RowElements() = default;
  HEDDLE_DEVICE explicit RowElements(int index) {
    // With the range known a hook's branches on dim fold.
    __builtin_assume(index >= 0 && index < kCount);
    partners = kSplit && (2 * kHalf == Tile::kHeadDim || index * kWidth < kHalf);
    first = partners ? index * kWidth : index * 2 * kWidth;
    second = partners ? first + kHalf : first + kWidth;
  }
  HEDDLE_DEVICE void load(const uint8_t* tile, int row, float scale) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint8_t* from = tile + Tile::element_offset(row, side == 0 ? first : second);
      if constexpr (kWidth == 2) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(from);
        x[side][0] = T::to_float(static_cast<uint16_t>(word)) * scale;
        x[side][1] = T::to_float(static_cast<uint16_t>(word >> 16)) * scale;
      } else {
        x[side][0] = T::to_float(*reinterpret_cast<const uint16_t*>(from)) * scale;
      }
    }
  }
  HEDDLE_DEVICE float sum_of_squares() const {
    float sum = 0.0f;
    for (int side = 0; side < 2; ++side)
      for (int e = 0; e < kWidth; ++e) sum += x[side][e] * x[side][e];
    return sum;
  }
  HEDDLE_DEVICE float partner_of(int side, int e) const {
    if constexpr (kInput.pair == kNoPair) return 0.0f;
    if constexpr (kInput.pair == kInterleaved) return x[side][e ^ 1];
    return partners ? x[side ^ 1][e] : x[side][e];
  }
  template <class Transform>
  HEDDLE_DEVICE void change(int row, int ahead, const Transform& hook) {
    float y[2][kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      y[0][e] = hook(x[0][e], partner_of(0, e), first + e, row, ahead);
      y[1][e] = hook(x[1][e], partner_of(1, e), second + e, row, ahead);
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) x[0][e] = y[0][e], x[1][e] = y[1][e];
  }
  HEDDLE_DEVICE void store(uint8_t* tile, int row) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      uint8_t* to = tile + Tile::element_offset(row, side == 0 ? first : second);
      if constexpr (kWidth == 2)
        *reinterpret_cast<uint32_t*>(to) = T::pack(x[side][0], x[side][1]);
      else
        *reinterpret_cast<uint16_t*>(to) = T::from_float(x[side][0]);
    }
  }
};

HEDDLE_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

// Rows [0, rows) of a shared-memory tile, by threads `thread` of `threads`, whole warps. `transform(x, pair, dim, row,
// ahead)` is the hook, of a row that stands `ahead` rows behind another which is changed along with it;
// `wanted(row)` leaves rows alone that hold nothing, if not all are wanted. One row is a long chain: kAtOnce of them go
// side by side where registers allow.
template <DType kType, class Tile, RowInput kInput, int kAtOnce, class Transform, class Wanted>
HEDDLE_DEVICE void transform_rows(uint8_t* tile, int rows, int thread, int threads, bool all_wanted,
                                  const Transform& transform, const Wanted& wanted) {
  using Elements = RowElements<kType, Tile, kInput>;
  const int first = thread / kWarpSize, step = threads / kWarpSize;
  __builtin_assume(first >= 0 && first < step);
  const auto change_row = [&](Elements& elements, int row, float scale) {
    elements.load(tile, row, scale);
    elements.change(row, 0, transform);
    elements.store(tile, row);
  };
  if constexpr (kInput.rms_eps >= 0) {
    // A warp a row: its lanes then know the row's sum of squares. Each changes what it has read.
#pragma unroll 1
    for (int row = first; row < rows; row += step) {
      if (!wanted(row)) continue;
      float sum = 0.0f;
#pragma unroll 1
      for (int i = thread % kWarpSize; i < Elements::kCount; i += kWarpSize) {
        Elements elements(i);
        elements.load(tile, row, 1.0f);
        sum += elements.sum_of_squares();
      }
      const float scale = rsqrtf(warp_sum(sum) / Tile::kHeadDim + kInput.rms_eps);
#pragma unroll 1
      for (int i = thread % kWarpSize; i < Elements::kCount; i += kWarpSize) {
        Elements elements(i);
        change_row(elements, row, scale);
      }
    }
  } else {
    // A lane keeps to its columns, so that what a hook makes of them (frequencies) is made once: where no
    // row is left out, since the compiler moves nothing out of a branch.
#pragma unroll 1
    for (int i = thread % kWarpSize; i < Elements::kCount; i += kWarpSize) {
      int row = first;
      if (all_wanted) {
        // Eight rows on, a tile's swizzle is the same: where registers reach for them, places in it are found once.
        const bool repeats = kAtOnce >= 4 && kAtOnce * step % 8 == 0;
        const auto eights = [](int ahead) { return ahead / 8 * 8 * Tile::kRowBytes; };
        // All are read before one is written: the compiler moves no read across a write.
#pragma unroll 1
        for (; row + (kAtOnce - 1) * step < rows; row += kAtOnce * step) {
          uint8_t* const at = repeats ? tile + (row - first) * Tile::kRowBytes : tile;
          const int placed = repeats ? first : row;
          Elements several[kAtOnce];
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) several[r] = Elements(i);
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) several[r].load(at + eights(r * step), placed + r * step % 8, 1.0f);
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) several[r].change(row + r * step, r * step, transform);
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) several[r].store(at + eights(r * step), placed + r * step % 8);
        }
      }
      Elements elements(i);
#pragma unroll 1
      for (; row < rows; row += step)
        if (wanted(row)) change_row(elements, row, 1.0f);
    }
  }
}

// Rows of a K or V tile that have landed: row r holds key first + r, where `wanted(r)` says so.
template <class Wanted>
struct LandedKeys {
  int rows, first;
  bool all_wanted;
  Wanted wanted;
};
template <class Wanted>
LandedKeys(int, int, bool, Wanted) -> LandedKeys<Wanted>;

// key_transform on them or, kIsV, value_transform.
template <class Spec, bool kIsV, int kAtOnce, class Tile = SmemTile<kIsV ? Spec::kHeadDimVo : Spec::kHeadDim>, class Hooks,
          class Keys>
HEDDLE_DEVICE void transform_keys(uint8_t* tile, const Keys& keys, int thread, int threads, HookContext context,
                                  const Hooks& hooks) {
  transform_rows<Spec::kType, Tile, kIsV ? Hooks::value_pair : Hooks::key_pair, kAtOnce>(
      tile, keys.rows, thread, threads, keys.all_wanted,
      [&](float x, float pair, int dim, int row, int ahead) {
        context.kv_pos = keys.first + row;
        context.kv_ahead = ahead;
        if constexpr (kIsV)
          return hooks.value_transform(x, pair, dim, context);
        else
          return hooks.key_transform(x, pair, dim, context);
      },
      keys.wanted);
}

// 1 / sqrt(mean + eps) of a row in global memory. Every lane that asks reads the whole row, which the
// lanes around it read too: once a query tile, out of L1.
template <DType kType, int kHeadDim>
HEDDLE_DEVICE float rms_scale(const uint16_t* row, float eps) {
  using T = Element<kType>;
  float sum = 0.0f;
  for (int chunk = 0; chunk < kHeadDim / kChunkElements; ++chunk) {
    const uint4 bits = reinterpret_cast<const uint4*>(row)[chunk];
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (const uint32_t word : words) {
      const float x = T::to_float(static_cast<uint16_t>(word)), y = T::to_float(static_cast<uint16_t>(word >> 16));
      sum += x * x + y * y;
    }
  }
  return rsqrtf(sum / kHeadDim + eps);
}

// Elements dim and dim + 1 of one q row, transformed, packed.
template <class Spec, class Hooks>
HEDDLE_DEVICE uint32_t load_q_pair(const uint16_t* row, int dim, const HookContext& context,
                                   const Hooks& hooks) {
  if constexpr (!Hooks::has_query_transform) {
    return *reinterpret_cast<const uint32_t*>(row + dim);
  } else {
    using T = Element<Spec::kType>;
    constexpr RowInput kInput = Hooks::query_pair;
    float scale = 1.0f;
    if constexpr (kInput.rms_eps >= 0) scale = rms_scale<Spec::kType, Spec::kHeadDim>(row, kInput.rms_eps);
    float y[2];
    for (int e = 0; e < 2; ++e) {
      float pair = 0.0f;
      if constexpr (kInput.pair != kNoPair)
        pair = T::to_float(row[partner_of(kInput, dim + e, Spec::kHeadDim)]) * scale;
      y[e] = hooks.query_transform(T::to_float(row[dim + e]) * scale, pair, dim + e, context);
    }
    return T::pack(y[0], y[1]);
  }
}

}  // namespace heddle
