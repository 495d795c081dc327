// The double-precision reference for any variant, ready to call: what tests, verify and bench compare
// with. Host arrays only.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace heddle {

// One request.
struct ReferenceInput {
  int num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  int head_dim_vo = 0;  // 0: head_dim
  int request = 0;   // its index in the batch, and
  int qo_begin = 0;  // its first row there: hooks see both
  int qo_len = 0, kv_len = 0;
  int row_begin = 0, num_rows = -1;  // of the qo_len rows those that are asked for; -1: all
  std::optional<MaskBounds> mask;    // in place of the one that the variant declares
  double sm_scale = 0;               // 0: 1 / sqrt(head_dim)
  std::span<const double> q;         // [num_rows, num_qo_heads, head_dim]
  std::span<const double> k, v;      // [kv_len, num_kv_heads, head_dim]; v with head_dim_vo
  // f16 or bf16: a plain computation that rounds just where a tensor-core kernel must before it has
  // an output (weights, transformed rows). Its distance from the exact one is the yardstick for
  // kernels: allowed_error().
  DType rounding = DType::f32;
  std::map<std::string, Tensor> tensors;  // the variant's own, in host memory
  std::span<const std::int32_t> first_keys, end_keys;  // [num_rows], as in Batch, of a variant whose rows are given
};

struct ReferenceResult {
  std::vector<double> o;    // [num_rows, num_qo_heads, head_dim_vo]
  std::vector<double> lse;  // [num_rows, num_qo_heads], natural log; -inf where a row sees no key
};

// `params` holds constants too. Compiles the variant for the host unless it is built in.
ReferenceResult reference(const Engine& engine, const Variant& variant, const ParamValues& params,
                          const ReferenceInput& input);

// By how much a right kernel's output, stored as `dtype`, may differ from `exact`: twice what the
// plain computation loses, and half the spacing of the largest output, which storing it costs.
//
// The two are kept apart because chance has no part in the second. Where few outputs are large, the
// plain computation may round them all to the lucky side, and a kernel whose sum is a hair off
// across the tie, as one f16 weight that falls the other way makes it, to the other: sigmoid with
// bias -4 over 129 keys had -2.5014345, became -2.50098 by its rounded weights, and was stored as
// -2.5019531 by one and as -2.5000000 by the other, in steps of 0.00195.
double allowed_error(const ReferenceResult& exact, const ReferenceResult& plain, DType dtype);

// The same of lse: twice what the plain computation loses of any row's. Not 0 only where transforms
// change q or k, whose rows are then rounded, so that the logits show it.
double lost_lse(const ReferenceResult& exact, const ReferenceResult& plain);

}  // namespace heddle
