// The products of a consumer warpgroup of append_sm90, S = Q K^T and O += P V, and what they keep in registers: O, the weights
// P of a tile, and where there is room the queries.
#pragma once

#include "templates/append_sm90_smem.cuh"
#include "templates/softmax.cuh"

namespace heddle {

template <class Spec, class Hooks>
class ConsumerProducts {
  using Smem = AppendSm90Smem<Spec>;
  using QTile = typename Smem::QTile;
  using KTile = typename Smem::KTile;
  using VTile = typename Smem::VTile;
  static constexpr int kBlocks = Spec::kTile.kv / 8;
  static constexpr int kOutBlocks = VTile::kColumns / 8;
  static constexpr int kKeySteps = Spec::kTile.kv / 16;
  static constexpr int kQuerySteps = QTile::kColumns / 16;

 public:
  using Sums = float[kOutBlocks][4];
  // Q K^T reads a third less shared memory, which is power, where Q is in registers.
  static constexpr bool kQueriesInRegisters = kHoldsQueries<Spec, Hooks>;

  // `group`: of the CTA's consumer warpgroups.
  HEDDLE_DEVICE ConsumerProducts(Smem& smem, int group) : smem_(smem), group_(group) {}

  // --- operands -------------------------------------------------------------------------------

  // Descriptors, made before a turn begins. They are uniform as far as the assembler can see: others cost
  // four moves from registers in front of every product.
  HEDDLE_DEVICE uint32_t queries_at(int buffer) const {
    return uniform(QTile::by_columns(shared_address(smem_.q[buffer]) + group_ * 64 * QTile::kRowBytes));
  }
  HEDDLE_DEVICE uint32_t keys_at(int stage) const {
    return KTile::by_columns(shared_address(smem_.stage[stage]));
  }
  HEDDLE_DEVICE uint32_t values_at(int stage) const {
    return VTile::by_rows(shared_address(smem_.stage[stage]));
  }

  // This thread's part of its warp's 16 rows, as products take it.
  HEDDLE_DEVICE void load_queries(int buffer) {
    const uint32_t tile = shared_address(smem_.q[buffer]);
    const int row = warp_index() * 16 + lane_index() % 16;
#pragma unroll
    for (int i = 0; i < kQuerySteps; ++i) {
      const int chunk = 2 * i + lane_index() / 16;
      ldmatrix_x4(queries_[i], tile + QTile::chunk_offset(row, chunk / QTile::kBlockChunks, chunk % QTile::kBlockChunks));
    }
  }

  // --- products -------------------------------------------------------------------------------

  // S = Q K^T, under way when it returns.
  HEDDLE_DEVICE void score(float (&s)[kBlocks][4], uint32_t queries, uint32_t keys) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQuerySteps; ++i) {
      const uint32_t k = keys + KTile::column_step(i);
      if constexpr (kQueriesInRegisters)
        Spec::multiply_keys(s, queries_[i], k, i > 0);
      else
        Spec::multiply_keys(s, queries + QTile::column_step(i), k, i > 0);
    }
    wgmma_commit();
  }

  // O += P V, under way when it returns.
  HEDDLE_DEVICE void accumulate(uint32_t values) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) Spec::multiply_values(o_, weights_[i], values + VTile::row_step(i), 1);
    wgmma_commit();
  }

  // --- O and P --------------------------------------------------------------------------------

  HEDDLE_DEVICE Sums& o() { return o_; }
  // Behind the wait for P V.
  HEDDLE_DEVICE void pin_o() { pin_registers(o_); }

  // Always, up to 128 columns: a branch on whether a factor is 1 would keep these products out of the gaps between
  // exponentials. Of more columns, and under a cap, only where a row's maximum rose, which it seldom does far into a stream.
  HEDDLE_DEVICE void multiply_o(const float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((kOutBlocks > 16 || kCapsLogits<Hooks>) && !__any_sync(kFullMask, factor[half] != 1.0f)) continue;
#pragma unroll
      for (int block = 0; block < kOutBlocks; ++block)
        for (int e = 2 * half; e < 2 * half + 2; ++e) o_[block][e] *= factor[half];
    }
  }

  HEDDLE_DEVICE void pack(const float (&s)[kBlocks][4]) {
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) pack_weights<Spec::kType>(weights_[i], s[2 * i], s[2 * i + 1]);
  }

  // In place: a plain assignment in a branch becomes a selection into as many registers again.
  HEDDLE_DEVICE void clear_o() {
#pragma unroll
    for (int block = 0; block < kOutBlocks; ++block)
      for (int e = 0; e < 4; ++e) asm volatile("mov.b32 %0, 0;" : "=f"(o_[block][e]));
  }

 private:
  Smem& smem_;
  const int group_;
  Sums o_;
  uint32_t weights_[kKeySteps][4] = {};
  uint32_t queries_[kQueriesInRegisters ? kQuerySteps : 1][4];
};

}  // namespace heddle
