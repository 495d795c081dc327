// Where a hook stands. Every skeleton (GPU, CPU, reference) hands it to every hook.
#pragma once

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define HEDDLE_HOOK __device__ __forceinline__
#else
#define HEDDLE_HOOK inline
#endif

namespace heddle {

struct HookContext {
  int request;  // index in the batch
  int qo_head;  // in key and value transforms: the first head of the group
  int kv_head;
  int q_pos;   // position in the sequence; -1 in key and value transforms
  int kv_pos;  // -1 in query and output transforms and in initial_state
  int q_row;   // row in q; -1 in key and value transforms
  int qo_len;
  int kv_len;
  // In hooks on logits: q_pos - kv_pos, kv_pos / 8 and kv_pos % 8.
  float kv_distance = 0;
  int kv_byte = 0, kv_bit = 0;
  // In key and value transforms: rows from the first of those that are transformed side by side to this one.
  int kv_ahead = 0;

  HEDDLE_HOOK void move_to_key(int pos) {
    kv_pos = pos;
    kv_distance = static_cast<float>(q_pos - pos);
    kv_byte = pos / 8;
    kv_bit = pos % 8;
  }
};

// As of a key no further than `most` from the query.
HEDDLE_HOOK HookContext held_within(const HookContext& context, int most) {
  HookContext held = context;
  const int ahead = context.kv_pos - context.q_pos;
  const int held_ahead = ahead < -most ? -most : ahead > most ? most : ahead;
  held.kv_pos = context.q_pos + held_ahead;
  held.kv_distance = static_cast<float>(-held_ahead);
  return held;
}

// Where a transform of a key or value stands.
HEDDLE_HOOK HookContext key_context(int request, int qo_len, int kv_len, int kv_pos, int kv_head, int group) {
  return {request, kv_head * group, kv_head, -1, kv_pos, -1, qo_len, kv_len};
}

HEDDLE_HOOK int key_position(const HookContext& context) { return context.kv_pos; }

// What holds for every row of an Attention.
struct HeadShape {
  int num_qo_heads;
  int num_kv_heads;
  int group;  // num_qo_heads / num_kv_heads
  int head_dim;     // of q and k
  int head_dim_vo;  // of v and o
};

// Pairs of columns that a transform of q, k or v sees together.
inline constexpr int kNoPair = 0;
inline constexpr int kHalfSplit = 1;    // x[d], x[d + W / 2] of the first W columns
inline constexpr int kInterleaved = 2;  // x[2 i], x[2 i + 1]

// How the elements of a row come to its transform. A template argument of the skeletons.
struct RowInput {
  int pair = kNoPair;
  int rotary_dim = 0;   // W; 0: head_dim
  float rms_eps = -1;   // 0 or more: elements come as x / sqrt(mean of the row's x^2 + rms_eps)
};

// dim's partner; a column without one is its own.
HEDDLE_HOOK int partner_of(const RowInput& input, int dim, int head_dim) {
  const int half = (input.rotary_dim > 0 ? input.rotary_dim : head_dim) / 2;
  if (input.pair == kHalfSplit && dim < 2 * half) return dim < half ? dim + half : dim - half;
  if (input.pair == kInterleaved && (dim ^ 1) < head_dim) return dim ^ 1;
  return dim;
}

}  // namespace heddle

// The words that a hook's body may use for its place and for the heads. kv_pos is one of KEY_POSITION(context).
#define HEDDLE_HOOK_WORDS(context, shape, KEY_POSITION)                                         \
  [[maybe_unused]] const int request = (context).request, qo_head = (context).qo_head,          \
                             kv_head = (context).kv_head, q_pos = (context).q_pos,              \
                             q_row = (context).q_row,                                           \
                             qo_len = (context).qo_len, kv_len = (context).kv_len,              \
                             num_qo_heads = (shape).num_qo_heads,                               \
                             num_kv_heads = (shape).num_kv_heads, group = (shape).group,        \
                             head_dim = (shape).head_dim, head_dim_vo = (shape).head_dim_vo;    \
  [[maybe_unused]] const auto kv_pos = KEY_POSITION(context);                                    \
  [[maybe_unused]] const int kv_byte = (context).kv_byte, kv_bit = (context).kv_bit;             \
  [[maybe_unused]] const auto kv_distance = (context).kv_distance
