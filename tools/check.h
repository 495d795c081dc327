// Holds one step's output against the double-precision reference.
#pragma once

#include <map>
#include <string>

#include "engine/engine.h"
#include "tools/step.h"

namespace heddle::tools {

struct StepCheck {
  double max_error = 0;  // of o
  double tolerance = 0;  // allowed_error() of a plain computation that rounds where a kernel must
  double max_lse_error = 0;  // relative above 1
  bool lse_right = true;
  bool rest_untouched = true;  // nothing was written behind the batch's rows
  bool ok() const { return max_error <= tolerance && lse_right && rest_untouched; }
  std::string problem() const;  // a sentence where !ok()
};

// Of a run, with the constants of its Attention.
ParamValues all_params(const AttentionConfig& config, const ParamValues& params);

// The worse of two, field by field.
StepCheck worse(const StepCheck& a, const StepCheck& b);

// `tensors`: the variant's own, in host memory.
StepCheck check_step(const Engine& engine, const Attention& attention, const ParamValues& params,
                     const KvCache& cache, int layer, const StepBatch& batch,
                     const QuerySide& query, const std::map<std::string, Tensor>& tensors = {});

}  // namespace heddle::tools
