// Device words: qualifiers, warp constants, 16-bit element types and the few PTX instructions that
// the mma.sync skeletons need, each once and under its PTX name. No CUDA header is included.
#pragma once

#include "templates/abi.h"
#include "templates/hook_context.h"

#define HEDDLE_DEVICE __device__ __forceinline__

namespace heddle {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr int kChunkBytes = 16;  // one cp.async, one row of an 8x8 matrix
inline constexpr int kChunkElements = 8;

HEDDLE_DEVICE float negative_infinity() { return __int_as_float(0xff800000); }
HEDDLE_DEVICE int lane_index() { return threadIdx.x % kWarpSize; }
HEDDLE_DEVICE int warp_index() { return threadIdx.x / kWarpSize; }
HEDDLE_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
HEDDLE_DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }
HEDDLE_DEVICE constexpr uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

HEDDLE_DEVICE constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

HEDDLE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16-bit elements as raw bits.
template <DType kType>
struct Element;

template <>
struct Element<DType::bf16> {
  static HEDDLE_DEVICE float to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
  static HEDDLE_DEVICE uint16_t from_float(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
  // The first of the two goes to the lower half.
  static HEDDLE_DEVICE uint32_t pack(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
  static HEDDLE_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Element<DType::f16> {
  static HEDDLE_DEVICE float to_float(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
  static HEDDLE_DEVICE uint16_t from_float(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
  static HEDDLE_DEVICE uint32_t pack(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
  static HEDDLE_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

HEDDLE_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory; zeros, and no read at all, where `valid` is false. `kWholeLine`: L2 reads all 128 bytes around
// them from memory at once.
template <bool kWholeLine = false>
HEDDLE_DEVICE void cp_async_16(uint32_t shared, const void* global, bool valid) {
  if constexpr (kWholeLine)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? kChunkBytes : 0)
                 : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? kChunkBytes : 0)
                 : "memory");
}
HEDDLE_DEVICE void cp_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
HEDDLE_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
HEDDLE_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

HEDDLE_DEVICE void ldmatrix_x2(uint32_t (&r)[2], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared));
}
HEDDLE_DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}
HEDDLE_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

// Programmatic dependent launch: the next kernel of the stream may take the SMs as this one's CTAs
// leave them, and reads its work list meanwhile. wait_for_predecessor() returns once everything
// in front of this kernel has finished and is visible. Every CTA must call it, one without
// work too: a kernel that ended before its predecessor would release its successor too early.
HEDDLE_DEVICE void release_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
HEDDLE_DEVICE void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings a line into L2, the point where all of the device agrees: harmless even if it is written later.
HEDDLE_DEVICE void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Words that CTAs pass to each other during a launch. Relaxed, not weak: ptxas may hoist a weak load
// out of a loop that polls.
HEDDLE_DEVICE float load_relaxed(const float* p) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
  return x;
}
HEDDLE_DEVICE float2 load_relaxed(const float2* p) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(p) : "memory");
  return x;
}
HEDDLE_DEVICE float4 load_relaxed(const float4* p) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(p)
               : "memory");
  return x;
}
// Between what the lanes of a warp have written and a flag that one of them stores, relaxed; and, of a flag that one of
// them has loaded so, between that and what all of them read.
HEDDLE_DEVICE void fence_behind_warp() {
  __syncwarp();
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
HEDDLE_DEVICE void fence_in_front_of_warp() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  __syncwarp();
}
HEDDLE_DEVICE void store_relaxed(float* p, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
}
HEDDLE_DEVICE void store_relaxed(float2* p, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(p), "f"(x.x), "f"(x.y) : "memory");
}

// Where K and V are read once, they stream through all of L2 in some 11 us, and each changed line that makes room for them is
// written among the reads of memory, which costs them more time than its bytes. So what a launch leaves behind, partial
// states and output, asks L2 to give it up last. (H200, 2026-12-01, us, with lse words as well: b64_4k 241.0 and 238.1, 256 of
// 1k 246.2 and 243.7, 8/1 heads 67.6 and 66.5, 96 columns 201.4 and 198.7. K and V given up first too: 2 to 4 less of 246 to
// 252, but behind a kernel that has left its lines in L2 more than without, most where requests share pages: decode.cuh.)
HEDDLE_DEVICE uint64_t kept_last() {
#if __CUDA_ARCH__ == 900
  return 0x14F0000000000000;  // what the instruction below gives there; as CUTLASS has it, and as it was measured
#else
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
#endif
}
HEDDLE_DEVICE void store_kept(float4* p, float4 x) {  // relaxed
  asm volatile("st.relaxed.gpu.global.L2::cache_hint.v4.f32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w), "l"(kept_last())
               : "memory");
}
HEDDLE_DEVICE void store_kept(uint4* p, uint4 x) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w),
               "l"(kept_last())
               : "memory");
}
HEDDLE_DEVICE void store_kept(uint2* p, uint2 x) {
  asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1,%2}, %3;" ::"l"(p), "r"(x.x), "r"(x.y), "l"(kept_last()) : "memory");
}

}  // namespace heddle
