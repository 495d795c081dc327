// One workload's tensors on the device, too large to keep a host copy of: every tensor is one
// block of random values, repeated, each from another start on. The block's length divides no
// row, so no two pages are alike, and the host can tell every value from the block.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench_pages.h"
#include "tools/device_memory.h"
#include "tools/lengths_only.h"
#include "tools/workload.h"

namespace heddle::tools {

struct RandomBlock {
  RandomBlock(const Engine& engine, DType dtype);

  std::vector<std::uint16_t> values;  // the first ones once more at the end, so that rows are whole
  DeviceMemory on_device;
};

// The blocks of a run, each made when it is first asked for.
class RandomBlocks {
 public:
  explicit RandomBlocks(const Engine& engine) : engine_(engine) {}
  const Engine& engine() const { return engine_; }
  const RandomBlock& of(DType dtype);

 private:
  const Engine& engine_;
  std::map<DType, std::unique_ptr<const RandomBlock>> blocks_;
};

class BenchData {
 public:
  // `blocks` must outlive it.
  BenchData(RandomBlocks& blocks, const Workload& workload);

  Batch batch() const { return first_requests(int(w_.qo_lens.size())); }
  Batch first_requests(int count) const;
  Tensors tensors(int layer) const;
  const Workload& workload() const { return w_; }
  const Engine& engine() const { return engine_; }

  // Rows of head_dim (of v head_dim_vo) values as the device holds them; K and V of layer 0.
  const std::uint16_t* q_row(int request, int row, int qo_head) const;
  const std::uint16_t* k_row(int request, int kv_pos, int kv_head) const;
  const std::uint16_t* v_row(int request, int kv_pos, int kv_head) const;
  // All heads of one row of the output: [num_qo_heads, head_dim_vo].
  std::vector<std::uint16_t> read_output(int request, int row) const;
  void clear_output();  // to NaN

 private:
  struct Filled {
    DeviceMemory memory;
    std::size_t start = 0;
  };

  Filled fill(std::size_t elements);
  const std::uint16_t* row_of(const Filled& filled, std::size_t element) const;
  std::size_t kv_index(int request, int kv_pos, int kv_head) const;  // of a row

  const Engine& engine_;
  const RandomBlock& block_;
  Workload w_;
  LengthsOnly lengths_;
  PageTable pages_;
  std::size_t next_start_ = 0;
  Filled q_;
  std::vector<Filled> k_, v_;  // one a layer
  DeviceMemory o_, indices_;
};

// How far layer 0's output is from double precision.
struct OutputError {
  double error = 0;    // the largest one of an element
  double largest = 0;  // element of what is right
  // Outputs shrink with the number of keys that they are means of, and so does what is allowed.
  double allowed() const;
  bool ok() const { return error <= allowed(); }
};

std::string wrong_result(const OutputError& found);  // what is said where it is not ok

// On a few rows of the first, the middle and the last of the first `num_requests`: the same rows on
// which the peers are checked. `rule`: what the output was made with.
OutputError output_error(const BenchData& data, const WorkloadVariant& rule, int num_requests);

}  // namespace heddle::tools
