// One configuration of attention held against the double-precision reference. Everything that a kernel must not read
// or write holds NaN.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check.h"

namespace heddle::tools {

struct VerifyCase {
  AttentionConfig config;  // with its constants
  KvLayout layout = KvLayout::NHD;
  std::vector<std::int32_t> qo_lens, kv_lens;  // as many of each
  ParamValues params;                          // of plan() and run()
  std::uint64_t seed = 0;                      // of the values, the order of pages, and the rows' ranges of keys
};

// Plans and runs it with an Attention of its config, and checks what came out.
StepCheck verify_case(const Engine& engine, Attention& attention, const VerifyCase& given);

// The command that runs it alone; `variant` is what --variant takes.
std::string command_of(const VerifyCase& given, const std::string& variant);

}  // namespace heddle::tools
