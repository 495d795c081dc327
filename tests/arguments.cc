#include "tests/arguments.h"

#include <fmt/format.h>

#include "tools/device_memory.h"
#include "tools/variant_tensors.h"

namespace heddle_tests {

using namespace heddle;

namespace {

constexpr int kRows = 64, kPages = 6, kPage = 16, kDim = 64;

// Zeros that every tensor may point to: results do not matter here.
void* zeros() {
  alignas(16) static std::uint16_t memory[kRows * 40 * kDim];
  return memory;
}
void* new_rows() {
  alignas(16) static std::uint16_t memory[kRows * 2 * kDim];
  return memory;
}

Tensor half_tensor(void* data, std::initializer_list<std::int64_t> shape) { return tools::tensor_of(data, DType::bf16, shape); }

void give_hnd(ArgumentCall& call) {
  call.tensors.layout = call.append.layout = KvLayout::HND;
  if (call.config.page_size == 0) return;
  call.tensors.k = call.tensors.v = half_tensor(zeros(), {kPages, call.config.num_kv_heads, kPage, kDim});
  call.append.k = call.append.v = call.tensors.k;
}

void give_f16(ArgumentCall& call) {
  call.config.q_dtype = call.config.kv_dtype = DType::f16;
  for (Tensor* t : {&call.tensors.q, &call.tensors.k, &call.tensors.v, &call.tensors.o}) t->dtype = DType::f16;
}

void give_head_dim_vo(ArgumentCall& call) {
  constexpr int kDimVo = 32;
  call.config.head_dim_vo = kDimVo;
  for (Tensor* t : {&call.tensors.v, &call.tensors.o, &call.append.new_v, &call.append.v}) t->shape[t->rank - 1] = kDimVo;
}

void give_table(ArgumentCall& call) {
  call.has_csr = call.has_last_page_len = false;
  call.kv_table_stride = 4;
}

}  // namespace

ArgumentCall::ArgumentCall(const AttentionConfig& given) : config(given) {
  const std::int64_t heads = config.num_qo_heads, kv_heads = config.num_kv_heads;
  tensors.q = tensors.o = half_tensor(zeros(), {kRows, heads, kDim});
  tensors.k = half_tensor(zeros(), {kPages, kPage, kv_heads, kDim});
  if (config.page_size == 0) {
    kv_indptr = {0, 40, 80};
    has_last_page_len = false;
    tensors.k = half_tensor(zeros(), {80, kv_heads, kDim});
  } else {
    tensors.kv_indices = ids.data();
  }
  tensors.v = tensors.k;
  append.new_k = append.new_v = half_tensor(new_rows(), {kRows, kv_heads, kDim});
  append.k = append.v = tensors.k;
  append.kv_indices = tensors.kv_indices;
  if (config.variant == "key_ranges") first_keys = {0, 5}, end_keys = {40, 12};
}

Batch ArgumentCall::batch() const {
  Batch batch{.qo_indptr = qo_indptr};
  if (has_csr) batch.kv_indptr = kv_indptr;
  if (has_last_page_len) batch.last_page_len = last_page_len;
  batch.kv_table_stride = kv_table_stride;
  if (!has_csr) batch.kv_lens = kv_lens;
  if (plans_with_ids) batch.kv_indices = ids;
  batch.first_keys = first_keys, batch.end_keys = end_keys;
  return batch;
}

void ArgumentCall::make(Engine& engine) {
  Attention attention = engine.attention(config);
  Workspace workspace = attention.workspace(maxima);
  const tools::VariantTensors own(engine, attention.variant(),
                                  {.num_qo_heads = config.num_qo_heads, .num_kv_heads = config.num_kv_heads,
                                   .head_dim = config.head_dim, .head_dim_vo = config.vo_dim(),
                                   .num_qo_rows = kRows, .num_requests = 2, .qo_len = kRows, .kv_len = 40},
                                  {}, 1);
  for (const auto& [name, tensor] : own.on_device()) {
    tensors.variant[name] = tensor;
    if (config.append_kv == AppendKv::transform) append.variant[name] = tensor;
  }
  attention.plan(batch(), workspace, stream, params);
  if (appends) attention.append_kv(workspace, append, append_params, stream);
  attention.run(workspace, tensors, params, stream);
}

const std::vector<ArgumentPath>& argument_paths() {
  const auto config = [](const char* variant, auto change) {
    AttentionConfig c{.variant = variant, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = kDim, .page_size = kPage};
    change(c);
    return c;
  };
  static const std::vector<ArgumentPath> paths = {
      {"decode", config("softmax", [](auto& c) { c.max_qo_len = 1; }), true},
      {"append", config("softmax", [](auto& c) { c.num_qo_heads = 40; }), false},
      {"both", config("softmax", [](auto&) {}), false},
      {"ragged", config("softmax", [](auto& c) { c.page_size = 0; }), true},
      {"invariant", config("softmax", [](auto& c) { c.batch_invariant = true; }), true},
      {"sharing", config("softmax", [](auto& c) { c.share_prefixes = true; }), true},
      {"copy", config("softmax", [](auto& c) { c.append_kv = AppendKv::copy; }), true},
      {"transform", config("qk_norm", [](auto& c) { c.append_kv = AppendKv::transform; }), false},
      {"sigmoid", config("sigmoid", [](auto&) {}), false},
      {"window", config("sliding_window", [](auto&) {}), false},
      {"rope", config("rope", [](auto&) {}), false},
      {"ranges", config("key_ranges", [](auto&) {}), true},
  };
  return paths;
}

const std::vector<Argument>& arguments() {
  using Call = ArgumentCall;
  // clang-format off
  static const std::vector<Argument> table = {
      {"nothing", [](Call&) {}, {}},
      {"sm_scale", [](Call& c) { c.config.sm_scale = 0.5f; }, {}},
      {"portable", [](Call& c) { c.config.portable = true; }, {}},
      {"f16", give_f16, {}},
      {"head_dim_vo", give_head_dim_vo, {}},
      {"kv_dtype alone", [](Call& c) { c.config.kv_dtype = DType::f16; }, {{"*", "kv_dtype f16"}}},
      {"constants", [](Call& c) { c.config.constants = {{"rotary_dim", 32}}; }, {{"*", "\"rotary_dim\""}, {"rope", ""}}},
      {"batch_invariant", [](Call& c) { c.config.batch_invariant = true; }, {{"sharing", "batch_invariant"}}},
      {"share_prefixes", [](Call& c) { c.config.share_prefixes = true; },
       {{"append", "share_prefixes"}, {"ragged", "share_prefixes"}, {"invariant", "share_prefixes"},
        {"window", "share_prefixes"}, {"rope", "share_prefixes"}, {"ranges", "share_prefixes"}}},
      {"append_kv = copy", [](Call& c) { c.config.append_kv = AppendKv::copy; }, {}},
      {"append_kv = transform", [](Call& c) { c.config.append_kv = AppendKv::transform; },
       {{"*", "append_kv is transform"}, {"transform", ""}, {"rope", ""}}},
      {"max_qo_len of the maxima", [](Call& c) { c.maxima.max_qo_len = 40; }, {{"decode", "max_qo_len is 40"}}},
      {"max_requests", [](Call& c) { c.config.max_requests = 2; }, {}},
      {"more requests than max_requests", [](Call& c) { c.config.max_requests = 1; }, {{"*", "max_requests is 2"}}},
      {"max_transformed_keys", [](Call& c) { c.maxima.max_transformed_keys = 64; },
       {{"*", "max_transformed_keys is 64"}, {"rope", ""}}},
      {"many rows", [](Call& c) { c.qo_indptr = {0, 40, 41}; },
       {{"decode", "qo_len is 40"}, {"ranges", "first_keys has 2 entries"}}},
      {"ranges of keys", [](Call& c) { c.first_keys = {0, 7}, c.end_keys = {40, 40}; },
       {{"*", "The batch gives 2 first_keys and 2 end_keys"}, {"ranges", ""}}},
      {"first keys alone", [](Call& c) { c.first_keys = {0, 7}, c.end_keys = {}; },
       {{"*", "The batch gives 2 first_keys and 0 end_keys"}, {"ranges", "end_keys has 0 entries"}}},
      {"a range past the last key", [](Call& c) { c.first_keys = {0, 7}, c.end_keys = {40, 41}; },
       {{"*", "The batch gives 2 first_keys and 2 end_keys"}, {"ranges", "end_keys[1], of its query row 0, is 41"}}},
      {"a page table", give_table, {{"ragged", "dense page table"}}},
      {"last_page_len", [](Call& c) { c.has_last_page_len = true; }, {{"ragged", "last_page_len"}}},
      {"page ids for plan()", [](Call& c) { c.plans_with_ids = true; }, {{"*", "kv_indices"}, {"sharing", ""}}},
      {"page ids for run()", [](Call& c) { c.tensors.kv_indices = c.ids.data(); }, {{"ragged", "kv_indices was given"}}},
      {"layout HND", give_hnd, {{"ragged", "layout HND"}}},
      {"lse", [](Call& c) { c.tensors.lse = tools::tensor_of(zeros(), DType::f32, {kRows, c.config.num_qo_heads}); },
       {{"sigmoid", "lse"}}},
      {"a param", [](Call& c) { c.params = {{"window", 5}}; }, {{"*", "\"window\""}, {"window", ""}}},
      {"a tensor of its own", [](Call& c) { c.tensors.variant["slopes"] = c.tensors.q; }, {{"*", "\"slopes\""}}},
      {"append_kv()", [](Call& c) { c.appends = true; }, {{"*", "append_kv = none"}, {"copy", ""}, {"transform", ""}}},
      {"append_kv() with layout HND", [](Call& c) { c.appends = true, give_hnd(c); },
       {{"*", "append_kv = none"}, {"copy", ""}, {"transform", ""}}},
      {"append_kv() with a param", [](Call& c) { c.appends = true, c.append_params = {{"by", 1}}; },
       {{"*", "append_kv = none"}, {"copy", "\"by\""}, {"transform", "\"by\""}}},
      {"append_kv() with a tensor", [](Call& c) { c.appends = true, c.append.variant["slopes"] = c.tensors.q; },
       {{"*", "append_kv = none"}, {"copy", "\"slopes\""}, {"transform", "\"slopes\""}}},
  };
  // clang-format on
  return table;
}

std::string Argument::refusal_on(const std::string& path) const {
  const auto own = refused.find(path);
  if (own != refused.end()) return own->second;
  const auto all = refused.find("*");
  return all == refused.end() ? "" : all->second;
}

std::string wrong_answer(Engine& engine, const Argument& argument, const ArgumentPath& path) {
  const std::string wanted = argument.refusal_on(path.name);
  ArgumentCall call(path.config);
  argument.give(call);
  std::string said;
  try {
    call.make(engine);
  } catch (const Error& error) {
    said = error.what();
  }
  const bool is_right = wanted.empty() ? said.empty() : said.find(wanted) != std::string::npos;
  if (is_right) return "";
  return fmt::format("{} on the path {}: {} where {} was expected", argument.name, path.name,
                     said.empty() ? "honoured" : said, wanted.empty() ? "nothing" : wanted);
}

}  // namespace heddle_tests
