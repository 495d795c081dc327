// Where a hook stands. Every skeleton (GPU, CPU, reference) hands it to every hook.
#pragma once

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
};

// What holds for every row of an Attention.
struct HeadShape {
  int num_qo_heads;
  int num_kv_heads;
  int group;  // num_qo_heads / num_kv_heads
  int head_dim;
};

}  // namespace heddle

// The words that a hook's body may use for its place and for the heads.
#define HEDDLE_HOOK_WORDS(context, shape)                                                       \
  [[maybe_unused]] const int request = (context).request, qo_head = (context).qo_head,          \
                             kv_head = (context).kv_head, q_pos = (context).q_pos,              \
                             kv_pos = (context).kv_pos, q_row = (context).q_row,                \
                             qo_len = (context).qo_len, kv_len = (context).kv_len,              \
                             num_qo_heads = (shape).num_qo_heads,                               \
                             num_kv_heads = (shape).num_kv_heads, group = (shape).group,        \
                             head_dim = (shape).head_dim
