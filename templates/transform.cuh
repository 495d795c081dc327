// query_, key_ and value_transform: elements are changed in place where they lie (q on its way to
// registers or shared memory, k and v in shared memory after they have landed), so that a hook does
// not care about fragments. With a rotary pair one thread changes both partners.
#pragma once

#include "templates/hook_context.h"
#include "templates/smem_tile.cuh"

namespace heddle {

// The two elements that one step handles together: partners, where the hook wants them.
template <int kHeadDim, RowInput kInput>
HEDDLE_DEVICE void pair_dims(int index, int& first, int& second) {
  constexpr int kHalf = (kInput.rotary_dim > 0 ? kInput.rotary_dim : kHeadDim) / 2;
  if (kInput.pair == kHalfSplit && index < kHalf) {
    first = index;
    second = index + kHalf;
  } else {
    first = index * 2;  // behind the pairs of a half split the other columns follow, two by two
    second = first + 1;
  }
}

template <DType kType, RowInput kInput>
struct RowElements {
  using T = Element<kType>;
  uint16_t *a, *b;
  int first, second;

  template <class Tile>
  static HEDDLE_DEVICE RowElements at(uint8_t* tile, int row, int index) {
    RowElements e;
    // With the range known a hook's branches on dim fold.
    __builtin_assume(index >= 0 && index < Tile::kHeadDim / 2);
    pair_dims<Tile::kHeadDim, kInput>(index, e.first, e.second);
    e.a = reinterpret_cast<uint16_t*>(tile + Tile::element_offset(row, e.first));
    e.b = reinterpret_cast<uint16_t*>(tile + Tile::element_offset(row, e.second));
    return e;
  }
  HEDDLE_DEVICE float sum_of_squares() const {
    const float x = T::to_float(*a), y = T::to_float(*b);
    return x * x + y * y;
  }
  template <class Tile, class Transform>
  HEDDLE_DEVICE void transform(int row, float scale, const Transform& hook) const {
    const float x = T::to_float(*a) * scale, y = T::to_float(*b) * scale;
    const bool partners = kInput.pair != kHalfSplit || kInput.rotary_dim == 0 || first < kInput.rotary_dim;
    *a = T::from_float(hook(x, kInput.pair == kNoPair ? 0.0f : partners ? y : x, first, row));
    *b = T::from_float(hook(y, kInput.pair == kNoPair ? 0.0f : partners ? x : y, second, row));
  }
};

HEDDLE_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

// Rows [0, rows) of a shared-memory tile, by threads `thread` of `threads`, whole warps. `transform(x,
// pair, dim, row)` is the hook; `wanted(row)` leaves rows alone that hold nothing, if not all are wanted.
template <DType kType, class Tile, RowInput kInput, class Transform, class Wanted>
HEDDLE_DEVICE void transform_rows(uint8_t* tile, int rows, int thread, int threads, bool all_wanted,
                                  const Transform& transform, const Wanted& wanted) {
  using Elements = RowElements<kType, kInput>;
  constexpr int kHalf = Tile::kHeadDim / 2;
  if constexpr (kInput.rms_eps >= 0) {
    // A warp a row: its lanes then know the row's sum of squares. Each changes what it has read.
#pragma unroll 1
    for (int row = thread / kWarpSize; row < rows; row += threads / kWarpSize) {
      if (!wanted(row)) continue;
      float sum = 0.0f;
#pragma unroll 1
      for (int i = thread % kWarpSize; i < kHalf; i += kWarpSize)
        sum += Elements::template at<Tile>(tile, row, i).sum_of_squares();
      const float scale = rsqrtf(warp_sum(sum) / Tile::kHeadDim + kInput.rms_eps);
#pragma unroll 1
      for (int i = thread % kWarpSize; i < kHalf; i += kWarpSize)
        Elements::template at<Tile>(tile, row, i).template transform<Tile>(row, scale, transform);
    }
  } else {
    // A lane keeps to its columns, so that what a hook makes of them (frequencies) is made once: where no
    // row is left out, since the compiler moves nothing out of a branch.
    const auto change = [&](int row, int i) {
      Elements::template at<Tile>(tile, row, i).template transform<Tile>(row, 1.0f, transform);
    };
    const int first = thread / kWarpSize, step = threads / kWarpSize;
#pragma unroll 1
    for (int i = thread % kWarpSize; i < kHalf; i += kWarpSize) {
      if (all_wanted) {
#pragma unroll 2
        for (int row = first; row < rows; row += step) change(row, i);
      } else {
#pragma unroll 1
        for (int row = first; row < rows; row += step)
          if (wanted(row)) change(row, i);
      }
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
template <class Spec, bool kIsV, class Hooks, class Keys>
HEDDLE_DEVICE void transform_keys(uint8_t* tile, const Keys& keys, int thread, int threads, HookContext context,
                                  const Hooks& hooks) {
  transform_rows<Spec::kType, SmemTile<kIsV ? Spec::kHeadDimVo : Spec::kHeadDim>,
                 kIsV ? Hooks::value_pair : Hooks::key_pair>(
      tile, keys.rows, thread, threads, keys.all_wanted,
      [&](float x, float pair, int dim, int row) {
        context.kv_pos = keys.first + row;
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
