// Every argument of a call against every path that it may take: it is honoured, or refused by its name
// before anything is launched. One table, for the CPU device and for the mock driver.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace heddle_tests {

// A whole call, from the config to the launch, of two requests of one query row and 40 keys each.
struct ArgumentCall {
  explicit ArgumentCall(const heddle::AttentionConfig& config);
  ArgumentCall(const ArgumentCall&) = delete;

  // Makes the Attention, plans, appends where asked to, and runs.
  void make(heddle::Engine& engine);

  heddle::AttentionConfig config;
  heddle::Maxima maxima{.max_requests = 2, .max_qo_rows = 64, .max_kv_tokens = 4096};
  std::vector<std::int32_t> qo_indptr{0, 1, 2}, kv_indptr{0, 3, 6}, last_page_len{8, 8}, kv_lens{40, 40};
  std::vector<std::int32_t> ids{0, 1, 2, 3, 4, 5, 0, 1};
  std::int64_t kv_table_stride = 0;
  bool has_csr = true, has_last_page_len = true, plans_with_ids = false;
  std::vector<std::int32_t> first_keys, end_keys;
  heddle::Tensors tensors;
  heddle::AppendTensors append;
  heddle::ParamValues params, append_params;
  heddle::Stream stream = nullptr;
  bool appends = false;

 private:
  heddle::Batch batch() const;
};

struct ArgumentPath {
  const char* name;
  heddle::AttentionConfig config;
  bool on_mock;  // compiling all of them would take minutes
};
const std::vector<ArgumentPath>& argument_paths();

struct Argument {
  const char* name;
  void (*give)(ArgumentCall& call);
  // By path, a part of the sentence that refuses it; "*": of all that are not named. Empty: honoured.
  std::map<std::string, std::string> refused;

  std::string refusal_on(const std::string& path) const;
};
const std::vector<Argument>& arguments();

// Of `argument` on `path`: empty where it is honoured or refused as the table says, else what happened.
std::string wrong_answer(heddle::Engine& engine, const Argument& argument, const ArgumentPath& path);

}  // namespace heddle_tests
