// What each built-in variant computes, written by hand from its source, in double: nothing here knows
// a spec, a hook or the renderer. Compositions follow the rule of variants/compose.h.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/reference.h"

namespace heddle_tests {

// A query row's place, and a key's.
struct Place {
  int request = 0, qo_head = 0, q_row = 0, qo_len = 0, kv_len = 0;
  int q_pos = 0, kv_pos = 0;
  int num_qo_heads = 0;
  int first_key = 0, end_key = 0;  // the row's given range
};

// A variant's params and tensors by their own names.
class Given {
 public:
  Given(const heddle::Variant& variant, std::size_t component, std::vector<double> params,
        const std::map<std::string, heddle::Tensor>& tensors);
  double param(const std::string& name) const;
  double at(const std::string& tensor, std::vector<std::int64_t> index) const;

 private:
  std::map<std::string, double> params_;
  std::map<std::string, heddle::Tensor> tensors_;
};

using Row = std::vector<double>;

// Parts that a variant leaves alone are empty.
struct Formula {
  std::function<Row(const Row&, int pos, const Given&)> query, key;
  std::function<double(double logit, const Place&, const Given&)> logit;
  std::function<bool(const Place&, const Given&)> keep;
  std::function<double(const Place&, const Given&)> sink;  // a logit with value 0
  bool softmax = true;
};

// By name; `gemma2` and other compositions have none of their own.
const std::map<std::string, Formula>& formulas();

// The variant's components, in their order, over one request.
heddle::ReferenceResult attend_by_formula(const heddle::Variant& variant,
                                          const heddle::ParamValues& params,
                                          const heddle::ReferenceInput& input);

}  // namespace heddle_tests
