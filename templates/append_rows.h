// Which new keys an item of a plan stores in append_kv. The step's work list is read a second time,
// so that appending needs no records of its own: every (query row, kv head) of a request stands in
// one item that is whole or joins the pieces of a cut stream, and row i of a request brings the key
// of position kv_len - qo_len + i.
#pragma once

#include "templates/abi.h"
#include "templates/hook_context.h"

namespace heddle {

// Rows of the item's request, counted from its first; for the item's kv heads.
struct NewRows {
  int begin, end;
};

HEDDLE_HOOK NewRows new_rows(const WorkItem& item, int group) {
  if (item.request < 0) return {0, 0};  // a shared prefix stands in front of all new keys
  if (item.partial >= 0 && item.join == 0) return {0, 0};  // a later piece of the same rows stores them
  // A query tile may begin or end within a token's heads: it has the tokens that begin in it.
  const int begin = (item.row_begin + group - 1) / group;
  const int end = (item.row_begin + item.num_rows + group - 1) / group;
  // A row in front of the sequence has no key. plan() refuses such a batch where append_kv is asked
  // for; nothing may be written out of bounds in any case.
  const int first = item.qo_len - item.kv_len;
  return {begin > first ? begin : first, end};
}

// Where a new key's transform stands.
HEDDLE_HOOK HookContext append_context(const WorkItem& item, int row, int kv_head, int group) {
  return key_context(item.request, item.qo_len, item.kv_len, item.kv_len - item.qo_len + row, kv_head, group);
}

}  // namespace heddle
