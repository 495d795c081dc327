// A workload with its data, its Attention and its plan: checked first, then timed.
#pragma once

#include "tools/bench_data.h"
#include "tools/bench_report.h"
#include "tools/variant_tensors.h"

namespace heddle::tools {

class BenchCase {
 public:
  // `workload` is settled. Makes the Attention, plans and runs once.
  BenchCase(Engine& engine, RandomBlocks& blocks, const Workload& workload);

  // A row without times where the output is wrong.
  BenchRow measure();

  void plan() { attention_.plan(data_.batch(), workspace_, nullptr, rule_.params); }
  void run(int layer, Stream stream) {
    Tensors tensors = data_.tensors(layer);
    tensors.variant = own_.on_device();
    attention_.run(workspace_, tensors, rule_.params, stream);
  }
  void wait() const;  // until the device has nothing to do

 private:
  void make_attention(Engine& engine);
  double run_us();

  bool on_gpu_;
  BenchData data_;
  WorkloadVariant rule_;
  VariantTensors own_;
  Attention attention_;
  Workspace workspace_;
  double first_s_ = 0;
};

// The row of a workload; of one that cannot run, with the reason.
BenchRow measure(Engine& engine, RandomBlocks& blocks, const Workload& workload);

// The config that serves a workload and no more. The one place where a workload's wishes reach
// the engine.
AttentionConfig config_of(const Workload& workload, const std::string& variant);

}  // namespace heddle::tools
