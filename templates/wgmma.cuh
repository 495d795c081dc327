// Hopper's words (sm_90a), each under its PTX name: mbarriers, named barriers, register budgets, and
// what surrounds warpgroup products. The two products that a unit needs are rendered with it, for
// exactly its shapes (engine/wgmma_source.h), as Spec::multiply_keys and Spec::multiply_values.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kWarpgroupSize = kWarpgroupWarps * kWarpSize;

// The same value in all lanes, and the compiler knows it.
HEDDLE_DEVICE int uniform(int x) { return __shfl_sync(kFullMask, x, 0); }

// One lane of the warp, the same every time. A branch on it tells the assembler, where lane_index() == 0 does not, that
// a single lane takes it: it would loop over lanes around each box that is copied.
HEDDLE_DEVICE bool is_elected() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected;
}

// --- mbarriers: a phase ends when `count` arrivals have been made --------------------------------

HEDDLE_DEVICE void barrier_init(const uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// After the inits of one thread, before the CTA's barrier.
HEDDLE_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HEDDLE_DEVICE void barrier_arrive(const uint64_t* barrier, int arrivals = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Arrives once this thread's earlier cp.asyncs have landed; the thread itself goes on. Whoever waits must
// fence before products read what was copied.
HEDDLE_DEVICE void barrier_arrive_after_copies(const uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Makes the present phase wait for that many bytes of the copy engine's too.
HEDDLE_DEVICE void barrier_expect(const uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Returns once the phase of that parity has ended; a fresh barrier counts as one whose phase 1 has.
HEDDLE_DEVICE void barrier_wait(const uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// Whether it has ended, without waiting.
HEDDLE_DEVICE bool barrier_test(const uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done;
}

// --- the copy engine: one box of a tensor map into shared memory; `barrier` counts its bytes ------

HEDDLE_DEVICE void copy_box(uint32_t to, const TensorMaps::Map& map, const uint64_t* barrier, int column, int head, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
      : "memory");
}
HEDDLE_DEVICE void copy_box(uint32_t to, const TensorMaps::Map& map, const uint64_t* barrier, int column, int head, int row,
                            int page) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(to), "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row), "r"(page)
      : "memory");
}
HEDDLE_DEVICE void prefetch_map(const TensorMaps::Map& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A place in a ring of stages, and the parity of its present round.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  HEDDLE_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// --- named barriers: id 0 is __syncthreads ---------------------------------------------------------

HEDDLE_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
HEDDLE_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- registers ---------------------------------------------------------------------------------------

template <int kRegisters>
HEDDLE_DEVICE void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
HEDDLE_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- warpgroup products --------------------------------------------------------------------------------

// Shared memory that threads wrote (cp.async too) becomes visible to products.
HEDDLE_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers that threads wrote become visible to the products that follow.
HEDDLE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HEDDLE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
HEDDLE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Products write registers behind the compiler's back: no use of them may move across this.
template <int kBlocks>
HEDDLE_DEVICE void pin_registers(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[block][e])::"memory");
}

// A tile of 16-bit rows as products read it: blocks of columns, each block's rows one after the other
// and swizzled over the width of a row, which is the largest of 128, 64 and 32 bytes that divides
// a row of every tile of the unit. A tile starts at a multiple of 1024 bytes.
template <int kRows_, int kHeadDim_, int kBlockColumns_>
struct WgmmaTile {
  static constexpr int kRows = kRows_, kHeadDim = kHeadDim_;
  static constexpr int kColumns = tile_columns(kHeadDim);
  static constexpr int kBlockColumns = kBlockColumns_;
  static constexpr int kBlocks = kColumns / kBlockColumns;
  static constexpr int kRowBytes = kBlockColumns * 2;
  static constexpr int kBytes = kRows * kColumns * 2;
  static constexpr int kBlockChunks = kBlockColumns / kChunkElements;
  static constexpr int kBlockBytes = kRows * kRowBytes;
  static constexpr int kEightRows = 8 * kRowBytes;  // the swizzle's period

  // Whether the row reaches into a chunk; if not, it stays zero.
  static HEDDLE_DEVICE constexpr bool has_chunk(int block, int chunk) {
    return kHeadDim == kColumns || block * kBlockColumns + chunk * kChunkElements < kHeadDim;
  }
  static HEDDLE_DEVICE int chunk_offset(int row, int block, int chunk) {
    constexpr int kShift = kBlockColumns == 64 ? 0 : kBlockColumns == 32 ? 1 : 2;
    const int swizzled = chunk ^ ((row >> kShift) & (kBlockChunks - 1));
    return block * kBlockBytes + row * kRowBytes + swizzled * kChunkBytes;
  }
  static HEDDLE_DEVICE int element_offset(int row, int column) {
    const int chunk = column % kBlockColumns / kChunkElements;
    return chunk_offset(row, column / kBlockColumns, chunk) + column % kChunkElements * 2;
  }

  // Descriptors hold addresses and strides in units of 16 bytes. All tiles of a unit swizzle alike, so
  // the upper half is one constant; the lower one is an address and its tile's leading stride.
  static constexpr uint32_t kDescriptorHigh =
      (kBlockColumns == 64 ? 1u : kBlockColumns == 32 ? 2u : 3u) << 30 | kEightRows / 16;
  static HEDDLE_DEVICE uint32_t descriptor(uint32_t address, int leading_bytes) {
    return (leading_bytes / 16) << 16 | address / 16;
  }
  // Columns are summed over (q, k); column_step(i) leads to columns 16 i on.
  static HEDDLE_DEVICE uint32_t by_columns(uint32_t address) { return descriptor(address, 16); }
  static HEDDLE_DEVICE constexpr int column_step(int i) {
    constexpr int kSteps = kBlockColumns / 16;
    return (i / kSteps * kBlockBytes + i % kSteps * 32) / 16;
  }
  // Rows are summed over (v).
  static HEDDLE_DEVICE uint32_t by_rows(uint32_t address) { return descriptor(address, kBlockBytes); }
  static HEDDLE_DEVICE constexpr int row_step(int i) { return i * 2 * kEightRows / 16; }
};

}  // namespace heddle
