// What other parts of a spec say of its params: their names, and lengths that may be one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "variants/spec_fields.h"
#include "variants/variant.h"

namespace heddle {

// The place of the param that a node names among the spec's own; refuses a name that none has.
int param_index(const SpecFields& fields, const SpecNode& node, const std::string& name, const std::vector<Param>& params);

// Refuses a param that cannot count keys, rows or elements; `of_what`: "an axis".
void check_length_param(const SpecFields& fields, const SpecNode& node, const Param& param, std::string_view of_what);

// A whole number from 0, or the name of an i32 param with such values.
Bound read_bound(const SpecFields& fields, const SpecNode& node, const std::vector<Param>& params, std::string_view of_what);

}  // namespace heddle
