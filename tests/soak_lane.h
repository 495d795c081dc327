// One Attention of a soak: tensors at fixed addresses, and a new batch at every step. A step runs
// its batch twice, by replaying a graph that was captured once and by a plan and a run beside it,
// on streams that change. The bits of both must be equal, and those of small batches are also held
// against the reference. On the CPU device a run stands in for the replay.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/reference.h"
#include "runtime/driver.h"
#include "tests/case_run.h"

namespace heddle_tests {

struct SoakCounts {
  std::int64_t steps = 0, checks = 0, replays = 0, runs = 0;
  std::int64_t cut_streams = 0, shared_prefixes = 0;
  std::int64_t attentions = 0, engines = 0;  // made
};

class SoakLane {
 public:
  // `capturing`: the stream on which the graph is captured. Streams must outlive the lane.
  SoakLane(const heddle::Engine& engine, heddle::Attention attention, std::uint64_t seed,
           heddle::Stream capturing);

  // Draws the next batch and brings its page ids to the device. The lane must be idle.
  void draw(bool is_small);
  // Puts the step on two or three of these streams and waits for none.
  void launch(std::span<const heddle::Stream> streams, SoakCounts& counts);
  // After everything has finished: whether replay and run agree, bit for bit.
  Found compare() const;
  // The same for the reference, and for what must not have been written. Costs much more.
  Found judge() const;

 private:
  struct Side {
    std::uint8_t poison = 0;
    heddle::Workspace workspace;
    heddle::tools::DeviceMemory o, lse;
  };
  struct Pool {
    std::vector<std::uint16_t> host;
    heddle::tools::DeviceMemory device;
  };
  bool appends() const { return config_.append_kv != heddle::AppendKv::none; }
  int num_requests() const { return int(qo_indptr_.size()) - 1; }
  int qo_len(int request) const { return qo_indptr_[request + 1] - qo_indptr_[request]; }
  std::string describe() const;

  void make_pool(Pool& pool, std::int64_t rows);
  void refill(Pool& pool);
  void capture(heddle::Stream stream);
  int draw_prefix(bool is_small);
  void draw_lengths(bool is_small);
  void draw_pages();
  std::int32_t draw_page(int index);
  void store_new_rows();
  heddle::Batch first_requests(int count) const;
  heddle::Tensor pages(const Pool& pool) const;
  heddle::Tensors tensors(const Side& side) const;
  heddle::AppendTensors append_tensors() const;
  std::int64_t key_at(int request, int kv_pos, int kv_head) const;

  void poison(Side& side, heddle::Stream stream);
  void call(Side& side, heddle::Stream stream);
  void replay(heddle::Stream stream, SoakCounts& counts);
  Found judge_request(int request, const std::vector<std::uint16_t>& o,
                      const std::vector<float>& lse) const;
  Found judge_rest() const;

  const heddle::Engine& engine_;
  heddle::Attention attention_;
  const heddle::AttentionConfig config_;
  heddle::tools::Random random_;
  heddle::tools::NormalSource values_;
  heddle::ParamValues params_;
  heddle::tools::VariantTensors own_;
  Pool q_, k_, v_, new_k_, new_v_;
  heddle::tools::DeviceMemory indices_;
  std::array<Side, 2> sides_;  // replayed, run
  heddle::Graph graph_;

  std::vector<std::int32_t> shuffled_;  // every page of the pool
  int prefix_ = 0;                      // keys that neighbours may share
  int num_compared_ = 0;                // requests that both sides ran
  std::vector<int> kv_lens_;
  std::vector<std::int32_t> qo_indptr_, kv_indptr_, last_page_len_, kv_indices_;
};

}  // namespace heddle_tests
