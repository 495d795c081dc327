// One workload's tensors on the device, too large to keep a host copy of: every tensor is one
// block of random values, repeated, each from another start on. The block's length divides no
// row, so no two pages are alike, and the host can tell every value from the block.
#pragma once

#include <string>
#include <vector>

#include "tools/device_memory.h"
#include "tools/workload.h"

namespace heddle::tools {

class BenchData {
 public:
  BenchData(const Engine& engine, const Workload& workload);

  Batch batch() const;
  Tensors tensors(int layer) const;
  const Workload& workload() const { return w_; }

  // Rows of head_dim values as the device holds them; K and V of layer 0.
  const std::uint16_t* q_row(int request, int row, int qo_head) const;
  const std::uint16_t* k_row(int request, int kv_pos, int kv_head) const;
  const std::uint16_t* v_row(int request, int kv_pos, int kv_head) const;
  // All heads of one row of the output: [num_qo_heads, head_dim].
  std::vector<std::uint16_t> read_output(int request, int row) const;

 private:
  struct Filled {
    DeviceMemory memory;
    std::size_t start = 0;
  };

  void make_lengths();
  Filled fill(const Engine& engine, std::size_t elements);
  const std::uint16_t* row_of(const Filled& filled, std::size_t element) const;
  std::size_t kv_element(int request, int kv_pos, int kv_head) const;

  Workload w_;
  std::vector<std::int32_t> qo_indptr_, kv_indptr_, last_page_len_, page_order_;
  std::int64_t num_pages_ = 0;  // rows where ragged
  std::vector<std::uint16_t> block_;
  DeviceMemory block_on_device_;
  std::size_t next_start_ = 0;
  Filled q_;
  std::vector<Filled> k_, v_;  // one a layer
  DeviceMemory o_, indices_;
};

// Largest error of layer 0's output against double precision on a few rows of the first, the
// middle and the last request: the same rows on which the peers are checked.
double worst_error(const BenchData& data);

}  // namespace heddle::tools
