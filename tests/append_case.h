// A seeded append_kv: lengths, pages in shuffled order, padded and different strides of K and V, new rows
// as views of a fused QKV array or head by head. Every slot of the pools holds a value of its own, so
// that a row in the wrong place shows, and so does one that was not written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tools/device_memory.h"
#include "tools/random.h"

namespace heddle_tests {

struct AppendShape {
  heddle::AttentionConfig config;
  heddle::KvLayout layout = heddle::KvLayout::NHD;
  std::vector<int> qo_lens, kv_lens;  // kv_len >= qo_len
  std::string describe() const;
};

class AppendCase {
 public:
  AppendCase(const heddle::Engine& engine, const AppendShape& shape, std::uint64_t seed);

  // Other lengths over the same memory: no more rows and pages than the first ones had.
  void take(const std::vector<int>& qo_lens, const std::vector<int>& kv_lens);

  heddle::Batch batch() const;
  heddle::Maxima maxima() const;
  heddle::AppendTensors tensors() const;  // without the variant's own

  void reset();  // the pools as they were before anything was appended
  std::vector<std::uint16_t> k_bits() const { return bits(k_); }
  std::vector<std::uint16_t> v_bits() const { return bits(v_); }

  // What a new row of head_dim values becomes at its position; null: itself.
  using Turn = std::function<std::vector<double>(const std::vector<double>&, int kv_pos)>;
  // Empty where the pools hold what the definition says, else what differs first. Rows that are turned
  // may differ from double precision by `allowed`, relative above 1, beyond their own rounding.
  std::string verdict(const Turn& key = nullptr, const Turn& value = nullptr, double allowed = 0) const;

 private:
  struct Pool {
    int dim = 0;                               // of a row
    std::int64_t page = 0, row = 0, head = 0;  // strides
    std::vector<std::uint16_t> before;
    heddle::tools::DeviceMemory memory;
  };
  void set_lengths();
  void lay_out(Pool& pool, heddle::tools::Random& random);
  heddle::Tensor tensor(const Pool& pool) const;
  heddle::Tensor new_rows(int first_head, int dim) const;
  std::vector<std::uint16_t> bits(const Pool& pool) const;
  std::string verdict_of(const char* name, const Pool& pool, int first_head, const Turn& turn, double allowed) const;

  AppendShape shape_;
  std::vector<std::int32_t> qo_indptr_, kv_indptr_, last_page_len_, kv_indices_;
  std::int64_t num_pages_ = 0;
  std::int64_t new_row_ = 0, new_head_ = 0;  // strides of the fused array; heads as wide as the wider of k and v
  std::vector<std::uint16_t> new_host_;      // [rows, q heads, k heads, v heads] in either order
  heddle::tools::DeviceMemory new_, indices_;
  Pool k_, v_;
};

// Any lengths, 0 new rows among them.
AppendShape random_append(heddle::tools::Random& random, const heddle::AttentionConfig& config);

}  // namespace heddle_tests
