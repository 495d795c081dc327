// A paged KV cache as a serving engine keeps it, with a host copy of every row, for `verify` and
// `demo`. Pages are handed out in a shuffled order. Every slot that holds no token holds NaN: the
// tail of a last page, free pages, pages of finished requests, so that a read of unused memory
// shows at once.
//
// With page_size 0 the cache is ragged: rows of the requests stand one after another, in the
// order in which they were appended, and a request can be appended to only once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tools/device_memory.h"
#include "tools/random.h"

namespace heddle::tools {

struct KvShape {
  int num_kv_heads = 0;
  int head_dim = 0;
  int head_dim_vo = 0;  // of V's rows; 0: head_dim
  int page_size = 16;   // 0: ragged
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::NHD;
  int vo_dim() const { return head_dim_vo != 0 ? head_dim_vo : head_dim; }
};

class KvCache {
 public:
  KvCache(const Engine& engine, const KvShape& shape, int num_layers, int num_pages,
          std::uint64_t seed);

  // Gives the request `tokens` new rows of random K and V in every layer.
  void append(int request, int tokens);
  // Takes the request's pages back and poisons them.
  void release(int request);
  // Brings what has changed to the device.
  void upload();

  int kv_len(int request) const;
  const std::vector<std::int32_t>& pages_of(int request) const;

  // K and V of one layer for Tensors.
  Tensor k(int layer) const { return tensor(k_[layer]); }
  Tensor v(int layer) const { return tensor(v_[layer]); }

  // Host copies, and which of their rows is a key's of one KV head: row i begins at element i * head_dim
  // of K and i * head_dim_vo of V.
  const std::vector<std::uint16_t>& host_k(int layer) const { return k_[layer].host; }
  const std::vector<std::uint16_t>& host_v(int layer) const { return v_[layer].host; }
  std::int64_t row_index(int request, int kv_pos, int kv_head) const;

  const KvShape& shape() const { return shape_; }

 private:
  struct Pool {
    int dim = 0;  // of its rows
    std::vector<std::uint16_t> host;
    DeviceMemory device;
  };
  struct Request {
    int kv_len = 0;
    std::vector<std::int32_t> pages;
  };

  Tensor tensor(const Pool& pool) const;
  int rows_per_page() const { return shape_.page_size ? shape_.page_size : 1; }
  std::int64_t page_elements(const Pool& pool) const;
  void fill_row(int request, int kv_pos);
  void poison(int page);

  KvShape shape_;
  int num_pages_;
  NormalSource values_;
  std::vector<Pool> k_, v_;         // one a layer
  std::vector<std::int32_t> free_;  // the next page is taken from the back
  std::map<int, Request> requests_;
  std::vector<char> dirty_;  // pages that differ from the device's
};

}  // namespace heddle::tools
