// What every hook sees besides its value. Whatever means nothing in a hook is -1 there.
//
// A query row meets many keys, so kv_pos is -1 in query_transform, output_transform and
// initial_state; a key's row meets many query rows, so q_pos and q_row are -1 in key_transform and
// value_transform, and qo_head is there the first head of the kv head's group.
#pragma once

namespace heddle {

struct HookContext {
  int request;
  int qo_head;
  int kv_head;
  int q_pos;   // kv_len - qo_len + row of the request; may be negative
  int kv_pos;  // from 0
  int q_row;   // row of q and o, over all requests
  int qo_len;
  int kv_len;
};

}  // namespace heddle
