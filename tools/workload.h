// A named workload of `bench`, and what it would cost a perfect machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "tools/key_ranges.h"
#include "tools/options.h"

namespace heddle::tools {

// Keys that neighbouring requests have in common: groups of `requests` share the next `keys`.
struct SharedLevel {
  int requests = 0, keys = 0;
};

// Keys that one row of a request sees: [begin, end), and the first `sinks` ones before those.
struct VisibleKeys {
  std::int64_t begin = 0, end = 0, sinks = 0;
  std::int64_t count() const { return end - begin + sinks; }
};

struct Workload {
  std::string name;
  std::string table;                           // of rows that run only where --only names them; or empty
  std::string beside;                          // the row that this one is held against; or empty
  std::string kind;                            // decode, append or mla
  std::vector<std::int32_t> qo_lens, kv_lens;  // [num_requests]
  Heads heads;
  int page_size = 0;  // 0: ragged
  DType dtype = DType::bf16;
  bool causal = false;
  double soft_cap = 0;   // 0: none
  int window_left = -1;  // -1: none
  std::string variant;   // in place of these three: a registered name or a spec's file
  std::vector<std::string> compose;  // the same, of several
  ParamValues params;    // of `variant`
  MaskBounds mask;       // what rows see, as the keys above come to; settle_variant() knows more
  int documents = 0;     // of a variant whose rows are given: packed documents of so many keys, or
  int prefix = 0;        // so many keys that all rows see, and causal behind them. One of the two
  KeyRanges ranges;      // what that comes to
  bool batch_invariant = false;
  bool portable = false;            // AttentionConfig's: no wgmma
  bool share_prefixes = false;      // AttentionConfig's; `shared` says what there is to share
  std::vector<SharedLevel> shared;  // from the first key on, each level's groups within those in front
  int pool_keys = 0;                // paged: requests draw their pages from so many keys; 0: each has its own
  int max_layers = 24;

  VisibleKeys keys_of(int request, int row) const;  // whose query row is one of the request's

  std::int64_t num_qo_rows() const;
  std::int64_t num_kv_tokens() const;
  // K and V rows that some query sees, each once, and q and o, in 16-bit elements. A variant's tensors
  // come on top.
  double bytes() const;
  // Two products over the visible (row, key) pairs of every query head.
  double flops() const;
  // Copies of K and V that together are well past the 60 MiB of L2, so that none is served from
  // there: 2 to max_layers.
  int layers() const;
  double kv_bytes() const;  // of bytes(), those of K and V

  // Nothing but softmax over every key of one query row a request.
  bool is_plain_decode() const;
  bool has_shape_of(const Workload& other) const;
};

// Throws, beginning with `where`, unless levels are whole pages, nest, and leave no request with fewer keys.
void check_shared(const std::vector<SharedLevel>& levels, int page_size, const std::vector<std::int32_t>& kv_lens,
                  const std::string& where);

// What a mask alone leaves of them.
VisibleKeys visible_keys(const MaskBounds& mask, int qo_len, int kv_len, int row);

// The list, and behind it the rows of "tables".
std::vector<Workload> read_workloads(std::string_view json, const std::string& file);

// Finds, reads or composes `variant` (Error where there is none, or where it does not take `params`)
// and sets `mask` to what it declares. Nothing to do where the workload names none.
void settle_variant(Engine& engine, Workload& workload);

// The variant that a settled workload runs, and the values of its params. Where the workload names
// none, one is composed of what it asks for.
struct WorkloadVariant {
  Variant variant;
  ParamValues params;
  std::map<std::string, Tensor> tensors;  // the variant's own, on the host
};
WorkloadVariant variant_of(const Engine& engine, const Workload& workload);

}  // namespace heddle::tools
