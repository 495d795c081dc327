// Records that host and device both read. Door of the room `templates`.
//
// This room holds the text that is compiled at run time: the kernel skeletons (.cuh for NVRTC,
// host_attention.h for the host's C++ compiler) and, in this file, every record that crosses from
// the CPU to a kernel. A rendered unit (engine/kernel_source.h) includes one skeleton, adds the
// variant's hooks and names the tile; nothing here knows a variant by name.
//
// One plan is one block of bytes that starts with PlanHeader; all offsets in it are bytes from
// its first byte. Records are plain integers, so the same bytes serve the GPU and the CPU device:
//
//   PlanHeader | int32 cta_begin[num_ctas + 1] of each pipeline | RowKeys[num_qo_rows], where the batch gives
//   the rows' ranges | TransformedKeys[num_transformed] and int32 key_row[num_requests], where keys are
//   transformed ahead | WorkItem[num_items] of each | RequestRecord[num_requests], which stays on the host
//
// CTA c of a pipeline runs items [cta_begin[c], cta_begin[c + 1]) in order. An item is a query
// tile of one request against a range of its KV tiles, for a range of kv heads, with all that a
// kernel needs to know of the request: a chain of dependent loads is what a short launch waits for.
// A (request, query tile, kv head) that is cut leaves pieces in CTAs of rising number. Each piece
// but the last publishes its partial state (o, lse) in a slot. The last one joins these slots, in
// slot order, with its own state and writes the output; it stands behind all other items of its CTA.
// So the bits do not depend on who came first, a CTA waits for itself and lower ones only, and it has
// published whatever others wait for before it waits.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cstdint>
#endif

// What host and device both call.
#if defined(__CUDACC_RTC__)
#define HEDDLE_BOTH __device__
#else
#define HEDDLE_BOTH
#endif

namespace heddle {

#if defined(__CUDACC_RTC__)
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uint8_t = unsigned char;
#else
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
#endif

enum class DType : int32_t { f16, bf16, f32, i32, u8, u32 };

// The kernel families that read a work list.
enum class Pipeline : int32_t { decode, append };
inline constexpr int kNumPipelines = 2;

// A bound that does not bind (no window on that side).
inline constexpr int32_t kUnbounded = 0x7fffffff;

// Declared mask structure with its run-time values. Row i of a request stands at
// q_pos = kv_len - qo_len + i. Key kv_pos is kept if it exists, if (causal) kv_pos <= q_pos, and if
// it is in the window (q_pos - kv_pos <= window_left and kv_pos - q_pos <= window_right) or a sink
// (kv_pos < sink).
struct MaskBounds {
  int32_t causal = 0;
  int32_t window_left = kUnbounded;
  int32_t window_right = kUnbounded;
  int32_t sink = 0;
};

// The keys [begin, end) that one row of q sees: the range that the batch gives it, and of that what the declared
// mask leaves. A row that sees none has begin = kv_len and end = 0, which no union of ranges notices.
struct RowKeys {
  int32_t begin, end;
};

// A request whose keys are transformed (key_transform) once a run, in front of append, and not by every query
// tile that reads them: keys [key_begin, key_end) become rows from `row` on of the workspace's transformed keys.
// These records follow each other as their rows do.
struct TransformedKeys {
  int64_t kv_offset;  // as a WorkItem's
  int32_t request;
  int32_t qo_len;
  int32_t kv_len;
  int32_t row;
  int32_t key_begin;
  int32_t key_end;
};

// In place of a row where a request has none there: its keys are transformed as they are read.
inline constexpr int32_t kNoKeyRow = -0x7fffffff - 1;

// Shared prefixes nest, so many at most; and a row has so many states of them at most, since one may be read in parts. The
// outermost one's come first.
inline constexpr int kMaxPrefixLevels = 3;
inline constexpr int kMaxPrefixStates = 16;

// Packed row p of a request is (token p / group, head p % group of the kv head's group).
// KV tile t of the visited ones is tile t of the sequence before gap_begin and t + gap_tiles from
// there on (sink keys stand before the gap, the window behind it).
struct WorkItem {
  int64_t kv_offset;  // paged: the request's first entry in kv_indices; ragged: its first K/V row
  int32_t request;    // below 0, -1 - (its first request * kMaxPrefixStates + a state): a part of a prefix that
                      // requests share, with the rows of all of them. It is the append pipeline's, and
                      // leaves that state of each instead of output, which decode, started behind it, joins
  int32_t qo_begin;  // its first row in q and o
  int32_t qo_len;
  int32_t kv_len;
  int32_t row_begin;      // first packed row of the query tile
  int16_t num_rows;       // packed rows in the tile, 1 .. tile rows
  int16_t prefix_states;  // of the prefixes that its rows share with others: [0, prefix_states), which decode joins
  int32_t kv_head_begin;  // kv heads [begin, end), each over the same KV tiles
  int32_t kv_head_end;
  int32_t tile_begin;  // visited KV tiles [begin, end); empty: the rows see no key
  int32_t tile_end;
  int32_t gap_begin;
  int32_t gap_tiles;
  int32_t partial;  // a piece's slot; of the last piece the first it joins; -1: the item is whole.
                    // A piece has one kv head, or, of decode, TileConfig::heads_abreast, and its slot a state of each
  int32_t join;     // the last piece: how many slots it joins; else 0
};

// Of an item whose request is below 0.
HEDDLE_BOTH constexpr int32_t prefix_state(const WorkItem& item) { return (-1 - item.request) % kMaxPrefixStates; }

// For people and checks on the host: kernels never read it.
struct RequestRecord {
  int64_t kv_offset;
  int32_t qo_begin;
  int32_t qo_len;
  int32_t kv_len;
  int32_t padding;
};

struct PlanSection {
  int32_t num_ctas;
  int32_t num_items;
  int32_t cta_begin_offset;
  int32_t items_offset;
};

struct PlanHeader {
  MaskBounds mask;
  int32_t num_requests;
  int32_t requests_offset;
  PlanSection section[kNumPipelines];
  int32_t prefix_row_begin;  // of q: the first row that there is room for states of shared prefixes for, and
  int32_t prefix_states;     // for how many a row; 0: nothing is shared in this step
  int32_t row_keys_offset;   // RowKeys of q's rows; 0: the batch gives none
  int32_t transformed_offset;  // TransformedKeys, num_transformed of them
  int32_t num_transformed;
  int32_t key_row_offset;  // of every request: the row that key 0 has, or would have, or kNoKeyRow. 0: none has
};

static_assert(sizeof(RequestRecord) == 24);
static_assert(sizeof(WorkItem) == 64);
static_assert(sizeof(PlanHeader) == 80);  // a multiple of 16, as every part of a plan is
static_assert(sizeof(RowKeys) == 8);
static_assert(sizeof(TransformedKeys) == 32);

// What a word of a slot that is a flag (merge.cuh says which) holds while nothing has been published in it: a NaN that no
// arithmetic gives. Whoever reads it puts it back.
inline constexpr uint32_t kEmptyWord = 0xffffffffu;

// Kernel argument: where everything is. Strides count elements.
struct AttentionParams {
  const void* q;              // [num_qo_rows, num_qo_heads, head_dim]
  const void* k;              // paged: [num_pages, page_size, num_kv_heads, head_dim] in any
  const void* v;              // order of axes; ragged: [num_kv_rows, num_kv_heads, head_dim]; v with head_dim_vo
  void* o;                    // [num_qo_rows, num_qo_heads, head_dim_vo]
  float* lse;                 // [num_qo_rows, num_qo_heads], natural log; may be null
  const int32_t* kv_indices;  // page ids; null when ragged
  const uint8_t* plan;        // PlanHeader
  const int32_t* cta_begin;   // of the pipeline that runs; at a fixed place behind the header
  float* partial_o;           // [slots, tile rows, head_dim_vo]: decode's kEmptyWord between launches, append's columns in
                              // an order of its own
  float* partial_lse;         // [slots, tile rows], kEmptyWord between launches
  float* prefix_o;            // [rows, num_qo_heads, prefix_states, head_dim_vo], and
  float* prefix_lse;          // [rows, num_qo_heads, prefix_states]: states of shared prefixes, of q's rows from
                              // prefix_row_begin on; kEmptyWord where there is none yet, and between launches; null
                              // where none are shared
  void* transformed_keys;     // [rows, num_kv_heads, head_dim] of kv_dtype: where TransformedKeys go; null where there
                              // is no room for any
  int64_t q_row_stride, q_head_stride;
  int64_t k_page_stride, k_row_stride, k_head_stride;
  int64_t v_page_stride, v_row_stride, v_head_stride;
  int64_t o_row_stride, o_head_stride;
  int64_t lse_row_stride, lse_head_stride;
  float sm_scale;
  int32_t num_kv_heads;
  // The rest is compiled into GPU units; the CPU skeleton reads it here.
  int32_t group;
  int32_t head_dim;
  int32_t head_dim_vo;
  int32_t page_size;  // 0: ragged
  DType q_dtype;
  DType kv_dtype;
  int32_t tile_rows;  // of the pipeline that runs
  int32_t tile_kv;
  int32_t kv_is_transformed;  // append_kv has applied key_ and value_transform: rows are read as they are
};

// Kernel argument of append_kv: the rows of a step's new keys and values, and where they go. Which
// request and position a row has, its kernel reads from the items of the plan (append_rows.h).
struct AppendKvParams {
  struct Side {
    const void* from;           // [num_qo_rows, num_kv_heads, head_dim or head_dim_vo], rows in the order of q's
    void* to;                   // k or v as in AttentionParams
    int64_t from_row_stride, from_head_stride;
    int64_t page_stride, row_stride, head_stride;  // of `to`
  };
  Side k, v;
  const int32_t* kv_indices;  // page ids; null when ragged
  const uint8_t* plan;        // PlanHeader
  int32_t num_kv_heads;
  // The rest is compiled into GPU units; the CPU skeleton reads it here.
  int32_t group;
  int32_t head_dim;
  int32_t head_dim_vo;
  int32_t page_size;  // 0: ragged
  DType kv_dtype;
  int32_t transforms;  // 0: rows are stored as they are
};

// Kernel argument of merge_states, as large as one may be (4 KB) with some room.
inline constexpr int kMaxMergeStates = 64;
struct MergeStatesParams {
  struct State {
    const void* o;     // [num_rows, num_heads, head_dim]
    const float* lse;  // [num_rows, num_heads], natural log
    int64_t o_row_stride, o_head_stride, lse_row_stride, lse_head_stride;
  };
  State states[kMaxMergeStates];
  void* o;     // like a state's, and may be one of them
  float* lse;  // the same; may be null
  int64_t o_row_stride, o_head_stride, lse_row_stride, lse_head_stride;
  int64_t num_rows;
  int32_t num_heads;
  int32_t num_states;
  // The rest is compiled into GPU units.
  int32_t head_dim;
  DType state_dtype;
  DType o_dtype;
};
static_assert(sizeof(MergeStatesParams) <= 4096);

// Room for a variant's own arguments, packed by engine/variant_args.h: per tensor a pointer and
// kMaxTensorRank strides (elements), then the run-time params, 4 bytes each, in spec order.
inline constexpr int kMaxTensorRank = 4;
inline constexpr int kMaxVariantArgBytes = 1024;
template <int kBytes>
struct ArgBytes {
  alignas(8) uint8_t bytes[kBytes];
};
using VariantArgs = ArgBytes<kMaxVariantArgBytes>;

// Tensors as Hopper's copy engine sees them (CUtensorMap); an argument of the wgmma kernel. Not usable:
// strides or sizes that the engine cannot take; rows are gathered then.
struct TensorMaps {
  struct alignas(64) Map {
    uint64_t words[16];
  };
  Map q, k, v;
  int32_t q_usable, kv_usable, transformed_usable;
  Map transformed;  // keys
};

// Columns of a row's tile in shared memory: a product takes 16 at a time. Those behind the row's own are
// zeros, there alone: rows in memory are as wide as head_dim, a multiple of 8, says.
HEDDLE_BOTH constexpr int tile_columns(int head_dim) { return (head_dim + 15) / 16 * 16; }

// How one GPU unit is cut; compiled into it. Written once here so that the launch and the kernel
// cannot disagree about shared memory.
struct TileConfig {
  int32_t rows;    // packed query rows of a tile
  int32_t kv;      // keys of a KV tile, of one kv head
  int32_t warps;
  int32_t stages;  // KV tiles in flight
  int32_t ctas_per_sm;
  int32_t smem_bytes;
  // Query tiles in shared memory, of the wgmma kernel: there `warps` are one producer warpgroup and a
  // consumer for every 64 rows, and `stages` counts tiles of K and of V. 0: an mma.sync kernel.
  int32_t q_buffers = 0;
  // Decode with 16 rows: q comes from shared memory again for each tile, for hooks that need its registers.
  bool reads_q_again = false;
  // Decode: kv heads that a CTA reads abreast, each by as many of its warps, a team. They divide warps and the model's heads.
  int32_t heads_abreast = 1;
};

}  // namespace heddle
