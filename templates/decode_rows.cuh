// One warp's registers for a query tile of decode and the two products over its keys of a KV tile, 16 or
// 32; once for up to 16 rows and once for up to 8, which is what one token of most models needs.
//
//            S = Q K^T                          O
//   16 rows  A = Q (16 x 16), B = K             O (16 rows x D), B = V
//    8 rows  the same, lower half of A zero     O^T (D x 8 rows), A = V^T: half the products and half
//                                               the registers, and S already lies as B = P^T wants it
//
// With 8 rows and 16 keys the dot products of even and odd steps stay apart until the end: half as long a
// chain of dependent products, which is what a warp waits for. 16 rows have no registers for that.
#pragma once

#include "templates/decode_copy.cuh"
#include "templates/smem_tile.cuh"
#include "templates/softmax.cuh"

namespace heddle {

template <class Spec, int kRows>
class DecodeRows;

template <class Spec>
class DecodeRows<Spec, 16> {
  using QkTile = SmemTile<Spec::kHeadDim>;
  using VTile = SmemTile<Spec::kHeadDimVo>;
  using Type = Element<Spec::kType>;
  static constexpr int kSteps = QkTile::kColumns / 16, kOutSteps = VTile::kColumns / 16;
  static constexpr int kKeys = kWarpKeysOf<Spec>, kBlocks = kKeys / 8;

 public:
  static constexpr int kHalves = 2;    // rows of a lane: lane / 4 and lane / 4 + 8
  using Logits = float[kBlocks][4];    // of the keys 2 * (lane % 4) + {0, 1} of every 8

  HEDDLE_DEVICE void begin() {
#pragma unroll
    for (int block = 0; block < kOutSteps * 2; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[block][e] = 0.0f;
  }
  HEDDLE_DEVICE void read_q(uint32_t q) {
    if constexpr (kKeepsQ) {
      const auto queries = QkTile::a_reader(q);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) ldmatrix_x4(q_[step], queries.at(0, step));
    }
  }
  HEDDLE_DEVICE void score(Logits& s, uint32_t q, uint32_t k) const {
    const auto queries = QkTile::a_reader(q);
    const auto keys = QkTile::b_reader(k);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      if constexpr (kKeepsQ) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q_[step][i];
      } else {
        ldmatrix_x4(a, queries.at(0, step));
      }
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, keys.at(block * 8, step));
        Type::mma(s[block], a, b[0], b[1]);
        Type::mma(s[block + 1], a, b[2], b[3]);
      }
    }
  }
  HEDDLE_DEVICE void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int block = 0; block < kOutSteps * 2; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[block][e] *= factor[e / 2];
  }
  HEDDLE_DEVICE void accumulate(const Logits& s, uint32_t v) {
    const auto values = VTile::b_trans_reader(v);
#pragma unroll
    for (int block = 0; block < kBlocks; block += 2) {
      uint32_t a[4];
      pack_weights<Spec::kType>(a, s[block], s[block + 1]);
#pragma unroll
      for (int pair = 0; pair < kOutSteps; ++pair) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, values.at(block * 8, pair));
        Type::mma(o_[pair * 2], a, b[0], b[1]);
        Type::mma(o_[pair * 2 + 1], a, b[2], b[3]);
      }
    }
  }
  // `to(row, column)` is where two neighbouring columns go.
  template <class To>
  HEDDLE_DEVICE void store(int num_rows, const To& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_index() / 4 + half * 8;
      if (row >= num_rows) continue;
#pragma unroll
      for (int block = 0; block < kOutSteps * 2; ++block)
        *reinterpret_cast<float2*>(to(row, block * 8 + lane_index() % 4 * 2)) = {o_[block][half * 2],
                                                                               o_[block][half * 2 + 1]};
    }
  }

 private:
  // As far as there are registers: scattered keys need some for their addresses.
  static constexpr int kRowColumns = QkTile::kColumns + VTile::kColumns;
  static constexpr bool kKeepsQ =
      !Spec::kTile.reads_q_again && (kRowColumns < 256 || (kRowColumns == 256 && Spec::kPageSize % 16 == 0));
  float o_[kOutSteps * 2][4];
  uint32_t q_[kKeepsQ ? kSteps : 1][4];
};

template <class Spec>
class DecodeRows<Spec, 8> {
  using QkTile = SmemTile<Spec::kHeadDim>;
  using VTile = SmemTile<Spec::kHeadDimVo>;
  using Type = Element<Spec::kType>;
  static constexpr int kSteps = QkTile::kColumns / 16, kOutSteps = VTile::kColumns / 16;
  static constexpr int kKeys = kWarpKeysOf<Spec>, kBlocks = kKeys / 8;
  static constexpr int kChains = kKeys == 16 ? 2 : 1;

 public:
  static constexpr int kHalves = 1;  // row lane / 4
  using Logits = float[kBlocks][2];

  HEDDLE_DEVICE void begin() {
#pragma unroll
    for (int step = 0; step < kOutSteps; ++step)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[step][e] = 0.0f;
  }
  HEDDLE_DEVICE void read_q(uint32_t q) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // Lanes 0 to 15 give the addresses.
      ldmatrix_x2(q_[step], q + QkTile::chunk_offset(lane_index() % 8, step * 2 + lane_index() / 8 % 2));
    }
  }
  HEDDLE_DEVICE void score(Logits& s, uint32_t, uint32_t k) const {
    const auto keys = QkTile::b_reader(k);
    float sum[kChains][kBlocks][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t a[4] = {q_[step][0], 0, q_[step][1], 0};
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, keys.at(block * 8, step));
        Type::mma(sum[step % kChains][block], a, b[0], b[1]);
        Type::mma(sum[step % kChains][block + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        s[block][e] = kChains == 2 ? sum[0][block][e] + sum[kChains - 1][block][e] : sum[0][block][e];
  }
  // O^T has a row a column: the factors of rows 2 * (lane % 4) + {0, 1} are with other lanes.
  HEDDLE_DEVICE void rescale(const float (&factor)[1]) {
    const int first = lane_index() % 4 * 8;
    const float even = __shfl_sync(kFullMask, factor[0], first), odd = __shfl_sync(kFullMask, factor[0], first + 4);
#pragma unroll
    for (int step = 0; step < kOutSteps; ++step)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[step][e] *= e % 2 ? odd : even;
  }
  HEDDLE_DEVICE void accumulate(const Logits& s, uint32_t v) {
    const auto values = VTile::b_reader(v);
#pragma unroll
    for (int block = 0; block < kBlocks; block += 2) {
      const uint32_t left = Type::pack(s[block][0], s[block][1]), right = Type::pack(s[block + 1][0], s[block + 1][1]);
#pragma unroll
      for (int step = 0; step < kOutSteps; ++step) {
        uint32_t a[4];
        ldmatrix_x4_trans(a, values.at(block * 8, step));
        Type::mma(o_[step], a, left, right);
      }
    }
  }
  template <class To>
  HEDDLE_DEVICE void store(int num_rows, const To& to) const {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = lane_index() % 4 * 2 + odd;
      if (row >= num_rows) continue;
#pragma unroll
      for (int step = 0; step < kOutSteps; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *to(row, step * 16 + half * 8 + lane_index() / 4) = o_[step][half * 2 + odd];
    }
  }

 private:
  float o_[kOutSteps][4];
  uint32_t q_[kSteps][2];
};

}  // namespace heddle
