// query_, key_ and value_transform: elements are changed in place where they lie (q on its way to
// registers or shared memory, k and v in shared memory after they have landed), so that a hook does
// not care about fragments. With a rotary pair one thread changes both partners.
#pragma once

#include "templates/smem_tile.cuh"

namespace heddle {

// Pair codes as the rendered hooks name them.
inline constexpr int kNoPair = 0;
inline constexpr int kHalfSplit = 1;    // x[d], x[d + D / 2]
inline constexpr int kInterleaved = 2;  // x[2 i], x[2 i + 1]

template <int kHeadDim, int kPair>
HEDDLE_DEVICE int partner_of(int dim) {
  if constexpr (kPair == kHalfSplit) return dim < kHeadDim / 2 ? dim + kHeadDim / 2 : dim - kHeadDim / 2;
  if constexpr (kPair == kInterleaved) return dim ^ 1;
  return dim;
}

// The two elements that one step handles together.
template <int kHeadDim, int kPair>
HEDDLE_DEVICE void pair_dims(int index, int& first, int& second) {
  if constexpr (kPair == kInterleaved) {
    first = index * 2;
    second = first + 1;
  } else {
    first = index;
    second = index + kHeadDim / 2;
  }
}

// Rows [0, rows) of a shared-memory tile, by threads `thread` of `threads`. `transform(x, pair, dim,
// row)` is the hook; `wanted(row)` leaves rows alone that hold nothing.
template <DType kType, class Tile, int kPair, class Transform, class Wanted>
HEDDLE_DEVICE void transform_rows(uint8_t* tile, int rows, int thread, int threads,
                                  const Transform& transform, const Wanted& wanted) {
  using T = Element<kType>;
  constexpr int kHalf = Tile::kHeadDim / 2;
  for (int i = thread; i < rows * kHalf; i += threads) {
    const int row = i / kHalf;
    if (!wanted(row)) continue;
    int first, second;
    pair_dims<Tile::kHeadDim, kPair>(i % kHalf, first, second);
    auto* a = reinterpret_cast<uint16_t*>(tile + Tile::element_offset(row, first));
    auto* b = reinterpret_cast<uint16_t*>(tile + Tile::element_offset(row, second));
    const float x = T::to_float(*a), y = T::to_float(*b);
    *a = T::from_float(transform(x, kPair == kNoPair ? 0.0f : y, first, row));
    *b = T::from_float(transform(y, kPair == kNoPair ? 0.0f : x, second, row));
  }
}

// key_ or value_transform on a K or V tile that has landed. `key_of(row)` is the row's kv_pos, or -1;
// `transform(x, pair, dim, context)` is the hook.
template <class Spec, int kPair, class KeyOf, class Transform>
HEDDLE_DEVICE void transform_keys(uint8_t* tile, int rows, int thread, int threads, HookContext context,
                                  const KeyOf& key_of, const Transform& transform) {
  transform_rows<Spec::kType, SmemTile<Spec::kHeadDim>, kPair>(
      tile, rows, thread, threads,
      [&](float x, float pair, int dim, int row) {
        context.kv_pos = key_of(row);
        return transform(x, pair, dim, context);
      },
      [&](int row) { return key_of(row) >= 0; });
}
template <class Spec, class Hooks, class KeyOf>
HEDDLE_DEVICE void transform_k(uint8_t* tile, int rows, int thread, int threads, const HookContext& context,
                               const Hooks& hooks, const KeyOf& key_of) {
  transform_keys<Spec, Hooks::key_pair>(tile, rows, thread, threads, context, key_of,
                                        [&](float x, float pair, int dim, const HookContext& c) {
                                          return hooks.key_transform(x, pair, dim, c);
                                        });
}
template <class Spec, class Hooks, class KeyOf>
HEDDLE_DEVICE void transform_v(uint8_t* tile, int rows, int thread, int threads, const HookContext& context,
                               const Hooks& hooks, const KeyOf& key_of) {
  transform_keys<Spec, Hooks::value_pair>(tile, rows, thread, threads, context, key_of,
                                          [&](float x, float pair, int dim, const HookContext& c) {
                                          return hooks.value_transform(x, pair, dim, c);
                                        });
}

// Elements dim and dim + 1 of one q row, transformed, packed.
template <class Spec, class Hooks>
HEDDLE_DEVICE uint32_t load_q_pair(const uint16_t* row, int dim, const HookContext& context,
                                   const Hooks& hooks) {
  if constexpr (!Hooks::has_query_transform) {
    return *reinterpret_cast<const uint32_t*>(row + dim);
  } else {
    using T = Element<Spec::kType>;
    float y[2];
    for (int e = 0; e < 2; ++e) {
      float pair = 0.0f;
      if constexpr (Hooks::query_pair != kNoPair)
        pair = T::to_float(row[partner_of<Spec::kHeadDim, Hooks::query_pair>(dim + e)]);
      y[e] = hooks.query_transform(T::to_float(row[dim + e]), pair, dim + e, context);
    }
    return T::pack(y[0], y[1]);
  }
}

}  // namespace heddle
