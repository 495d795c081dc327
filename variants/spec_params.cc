#include "variants/spec_params.h"

#include <algorithm>

#include "variants/nearest.h"

namespace heddle {

int param_index(const SpecFields& fields, const SpecNode& node, const std::string& name, const std::vector<Param>& params) {
  const auto at = std::find_if(params.begin(), params.end(), [&](const Param& param) { return param.name == name; });
  if (at == params.end()) {
    fail(ErrorKind::invalid_spec, "{} is {}, which is not among the spec's params; {}.", fields.where(node), in_quotes(name),
         offer(name, names_in(params)));
  }
  return static_cast<int>(at - params.begin());
}

void check_length_param(const SpecFields& fields, const SpecNode& node, const Param& param, std::string_view of_what) {
  if (!param.is_float && param.min && *param.min >= 0) return;
  fail(ErrorKind::invalid_spec, "{} is {}, {}, but the param of {} must be an i32 with a min of 0 or more.",
       fields.where(node), in_quotes(node.text),
       param.is_float ? "an f32 param" : (param.min ? "whose min is negative" : "which has no min"), of_what);
}

Bound read_bound(const SpecFields& fields, const SpecNode& node, const std::vector<Param>& params, std::string_view of_what) {
  constexpr std::string_view kAllowed = "a whole number from 0 to 2147483647 or the name of an i32 param";
  if (node.kind == SpecNode::Kind::number) {
    const double value = node.number;
    if (value < 0 || value > 0x7fffffff || value != static_cast<std::int32_t>(value)) fields.refuse(node, kAllowed);
    return {.literal = static_cast<std::int32_t>(value)};
  }
  const int param = param_index(fields, node, fields.string(node, kAllowed), params);
  check_length_param(fields, node, params[static_cast<std::size_t>(param)], of_what);
  return {.param = param};
}

}  // namespace heddle
