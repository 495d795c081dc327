// The ceiling that decode is measured against: how fast a plain kernel reads memory. Each thread
// keeps kUnroll 128-bit loads in flight. The sum is kept so that no load can be left out; it is
// stored only where it equals a value that random data does not give.
struct alignas(16) Quad {
  unsigned x, y, z, w;
};

constexpr int kUnroll = 8;

__device__ inline Quad load_streaming(const Quad* from) {
  Quad q;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
               : "l"(from));
  return q;
}

__device__ inline unsigned sum_block(const Quad* from, long long stride) {
  Quad loaded[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) loaded[i] = load_streaming(from + i * stride);
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) sum ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
  return sum;
}

// All CTAs walk through memory together: neighbouring CTAs read neighbouring blocks.
// Requires: count is a multiple of kUnroll * gridDim.x * blockDim.x, or its rest is left unread.
extern "C" __global__ void read_together(const Quad* data, long long count, unsigned* sink) {
  const long long block = (long long)blockDim.x * kUnroll;
  unsigned sum = 0;
  for (long long at = blockIdx.x * block; at + block <= count; at += gridDim.x * block) {
    sum ^= sum_block(data + at + threadIdx.x, blockDim.x);
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

// Each CTA reads one contiguous piece of memory of its own.
extern "C" __global__ void read_apart(const Quad* data, long long count, unsigned* sink) {
  const long long block = (long long)blockDim.x * kUnroll;
  const long long piece = count / gridDim.x / block * block;
  const Quad* mine = data + blockIdx.x * piece;
  unsigned sum = 0;
  for (long long at = 0; at < piece; at += block) sum ^= sum_block(mine + at + threadIdx.x, blockDim.x);
  if (sum == 0x9e3779b9u) *sink = sum;
}
