// Keys that append finds transformed: key_transform once a run, into the workspace, in place of once a query tile.
//
//   this CTA's share of all rows (key, kv head), request by request:
//     16 bytes of a key for two heads at once a thread: page id; loads; hook; stores
//
// A thread keeps to its columns, so that what a hook makes of them (frequencies) is made once, and angles once a key.
#pragma once

#include "templates/row_chunk.cuh"
#include "templates/work.cuh"

namespace heddle {

template <class Spec, class Hooks>
class TransformedKeysPass {
  using Chunk = RowChunk<Spec::kType, Spec::kHeadDim, Hooks::key_pair>;
  static constexpr int kChunks = Spec::kHeadDim / kChunkElements;  // of a row
  static constexpr int kHeadsAtOnce = Hooks::key_pair.rms_eps >= 0 ? 1 : 2;  // a row's norm has loads enough

 public:
  HEDDLE_DEVICE TransformedKeysPass(const AttentionParams& params, const Hooks& hooks) : p_(params), hooks_(hooks) {}

  HEDDLE_DEVICE void run() {
    release_successor();
    const PlanHeader* header = reinterpret_cast<const PlanHeader*>(p_.plan);
    const int count = header->num_transformed;
    const auto* requests = reinterpret_cast<const TransformedKeys*>(p_.plan + header->transformed_offset);
    wait_for_predecessor();  // keys are written, and nobody reads those of the run before
    if (count == 0) return;
    const TransformedKeys& last = requests[count - 1];
    const int64_t rows = last.row + (last.key_end - last.key_begin);
    const int begin = static_cast<int>(rows * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(rows * (blockIdx.x + 1) / gridDim.x);
    for (int i = request_of(requests, count, begin); i < count && requests[i].row < end; ++i)
      transform(requests[i], begin, end);
  }

 private:
  // The last request whose rows begin at `row` or in front of it.
  static HEDDLE_DEVICE int request_of(const TransformedKeys* requests, int count, int row) {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (requests[middle].row <= row)
        low = middle;
      else
        high = middle;
    }
    return low;
  }

  // Of a request, the keys whose rows are in [begin, end).
  HEDDLE_DEVICE void transform(const TransformedKeys& keys, int begin, int end) const {
    const int first = max_of(keys.row, begin), behind = min_of(keys.row + keys.key_end - keys.key_begin, end);
    const int step = blockDim.x / kChunks;
    if (threadIdx.x / kChunks >= step) return;
#pragma unroll 1
    for (int row = first + threadIdx.x / kChunks; row < behind; row += step)
      transform_key(keys, keys.key_begin + row - keys.row, row);
  }

  // This thread's columns of all heads: what depends on the position is the same for them.
  HEDDLE_DEVICE void transform_key(const TransformedKeys& keys, int key, int row) const {
    const int chunk = threadIdx.x % kChunks, heads = p_.num_kv_heads;
    const uint16_t* const from = row_at(keys.kv_offset, key);
    uint16_t* const to = static_cast<uint16_t*>(p_.transformed_keys) + chunk * kChunkElements;
#pragma unroll 1
    for (int first = 0; first < heads; first += kHeadsAtOnce) {
      uint4 changed[kHeadsAtOnce];
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int kv_head = min_of(first + h, heads - 1);
        const HookContext context = key_context(keys.request, keys.qo_len, keys.kv_len, key, kv_head, Spec::kGroup);
        changed[h] = Chunk::load(from + kv_head * p_.k_head_stride, chunk, [&](float x, float pair, int dim) {
          return hooks_.key_transform(x, pair, dim, context);
        });
      }
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h)
        if (first + h < heads)
          *reinterpret_cast<uint4*>(to + transformed_key_offset<Spec::kHeadDim>(p_, row, first + h)) = changed[h];
    }
  }

  // Of the first head.
  HEDDLE_DEVICE const uint16_t* row_at(int64_t kv_offset, int key) const {
    using Address = KvAddress<Spec::kPageSize>;
    const int row_id = Address::row_id(p_, kv_offset, key, true);
    return static_cast<const uint16_t*>(p_.k) + Address::k_offset(p_, kv_offset, row_id, key);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
};

}  // namespace heddle
