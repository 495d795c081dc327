#include "engine/merge_states.h"

#include <algorithm>

#include "engine/call.h"
#include "engine/check_tensors.h"
#include "engine/load_kernel.h"
#include "engine/merge_source.h"
#include "templates/host_merge_states.h"

namespace heddle {
namespace detail {

struct MergeState {
  std::shared_ptr<EngineState> engine;
  MergeConfig config;
  LoadedKernel gpu;
};

}  // namespace detail

namespace {

static_assert(MergeStates::kMaxStates == kMaxMergeStates);

using detail::check_size;

void check_dtype(const std::string& name, const Tensor& t, DType dtype) {
  if (t.data && t.dtype != dtype)
    fail(ErrorKind::invalid_argument, "Tensor {} holds {}; it needs {}.", name, name_of(t.dtype), name_of(dtype));
}

// Shape and strides of one state, or of the result: `lse` may then be missing.
MergeStatesParams::State check_state(const std::string& name, const PartialState& state, DType dtype, int head_dim,
                                     const Tensor& like, bool is_result) {
  const std::string o = name + ".o", lse = name + ".lse";
  check_dtype(o, state.o, dtype);
  detail::check_rows(o.c_str(), state.o, dtype, 3);
  check_size(o.c_str(), "rows", state.o.shape[0], like.shape[0]);
  check_size(o.c_str(), "num_heads", state.o.shape[1], like.shape[1]);
  check_size(o.c_str(), "head_dim", state.o.shape[2], head_dim);
  if (is_result && !state.lse.data) return {state.o.data, nullptr, state.o.strides[0], state.o.strides[1], 0, 0};
  check_dtype(lse, state.lse, DType::f32);
  detail::check_lse(lse.c_str(), state.lse);
  check_size(lse.c_str(), "rows", state.lse.shape[0], like.shape[0]);
  check_size(lse.c_str(), "num_heads", state.lse.shape[1], like.shape[1]);
  return {state.o.data, static_cast<const float*>(state.lse.data), state.o.strides[0], state.o.strides[1],
          state.lse.strides[0], state.lse.strides[1]};
}

// In place each element is read and written by one thread, if it is the same element.
void check_in_place(std::size_t index, const Tensor& state, const Tensor& result, const char* part) {
  if (!result.data || state.data != result.data) return;
  bool is_same = state.dtype == result.dtype;
  for (int axis = 0; axis < state.rank; ++axis) is_same = is_same && (state.shape[axis] <= 1 || state.strides[axis] == result.strides[axis]);
  if (!is_same)
    fail(ErrorKind::invalid_argument,
         "Tensor result.{0} starts where states[{1}].{0} does, with another dtype or other strides; in place they must be equal.",
         part, index);
}

MergeStatesParams checked_params(const MergeConfig& config, std::span<const PartialState> states, const PartialState& result) {
  if (states.empty() || states.size() > MergeStates::kMaxStates)
    fail(ErrorKind::invalid_argument, "merge_states was given {} states; it takes 1 to {} (more: merge them in turns, in f32).",
         states.size(), MergeStates::kMaxStates);
  MergeStatesParams p{};
  const Tensor& like = states[0].o;
  for (std::size_t s = 0; s < states.size(); ++s)
    p.states[s] = check_state(fmt::format("states[{}]", s), states[s], config.state_dtype, config.head_dim, like, false);
  const MergeStatesParams::State to = check_state("result", result, config.o_dtype, config.head_dim, like, true);
  for (std::size_t s = 0; s < states.size(); ++s) {
    check_in_place(s, states[s].o, result.o, "o");
    check_in_place(s, states[s].lse, result.lse, "lse");
  }
  constexpr const char* kWhy = "the result is written there, so it must not be 0";
  detail::check_written("result.o", result.o, kWhy);
  if (result.lse.data) detail::check_written("result.lse", result.lse, kWhy);
  p.o = result.o.data, p.lse = static_cast<float*>(result.lse.data);
  p.o_row_stride = to.o_row_stride, p.o_head_stride = to.o_head_stride;
  p.lse_row_stride = to.lse_row_stride, p.lse_head_stride = to.lse_head_stride;
  p.num_rows = like.shape[0];
  p.num_heads = static_cast<int32_t>(like.shape[1]);
  p.num_states = static_cast<int32_t>(states.size());
  p.head_dim = config.head_dim;
  p.state_dtype = config.state_dtype, p.o_dtype = config.o_dtype;
  return p;
}

void check_merge_config(const MergeConfig& c) {
  if (c.head_dim < 8 || c.head_dim % 8 != 0)
    fail(ErrorKind::invalid_argument, "head_dim {} is not supported by merge_states; it must be a multiple of 8.", c.head_dim);
  for (const auto& [name, dtype] : {std::pair{"state_dtype", c.state_dtype}, std::pair{"o_dtype", c.o_dtype}})
    if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
      fail(ErrorKind::unsupported, "{} {} is not supported by merge_states; bf16, f16 and f32 are.", name, name_of(dtype));
}

const detail::MergeState& checked(const std::shared_ptr<const detail::MergeState>& state) {
  if (!state) fail(ErrorKind::invalid_argument, "The MergeStates is empty; make one with Engine::merge_states().");
  return *state;
}

Tensor slice(const Tensor& t, std::int64_t index) {
  Tensor part{.data = static_cast<std::byte*>(t.data) + index * t.strides[0] * bytes_of(t.dtype), .dtype = t.dtype,
              .rank = t.rank - 1};
  for (int axis = 0; axis < part.rank; ++axis)
    part.shape[axis] = t.shape[axis + 1], part.strides[axis] = t.strides[axis + 1];
  return part;
}

}  // namespace

std::vector<PartialState> unstack_states(const Tensor& o, const Tensor& lse) {
  for (const auto& [name, t, rank] : {std::tuple{"o", &o, 4}, std::tuple{"lse", &lse, 3}}) {
    if (!t->data) fail(ErrorKind::invalid_argument, "The stacked tensor {} has no data.", name);
    if (t->rank != rank) fail(ErrorKind::invalid_argument, "The stacked tensor {} has {} axes; it needs {}.", name, t->rank, rank);
  }
  if (o.shape[0] < 0 || o.shape[0] != lse.shape[0])
    fail(ErrorKind::invalid_argument, "The stacked tensors hold {} states in o and {} in lse; they must hold the same number.",
         o.shape[0], lse.shape[0]);
  std::vector<PartialState> states;
  for (std::int64_t s = 0; s < o.shape[0]; ++s) states.push_back({slice(o, s), slice(lse, s)});
  return states;
}

MergeStates Engine::merge_states(const MergeConfig& config) {
  check_merge_config(config);
  auto state = std::make_shared<detail::MergeState>(detail::MergeState{state_, config, {}});
  if (state_->on_gpu()) {
    state_->device->make_current();
    state->gpu = detail::load_kernel(*state_, "merge_states", [&] {
      return build_merge_states(state_->cache, state_->nvrtc_compiler(), config, state_->info.arch);
    });
  }
  MergeStates merge;
  merge.state_ = std::move(state);
  return merge;
}

void MergeStates::run(std::span<const PartialState> states, const PartialState& result, Stream stream) const {
  const detail::MergeState& m = checked(state_);
  detail::check_stream(*m.engine, stream, "merge_states");
  MergeStatesParams p = checked_params(m.config, states, result);
  if (p.num_rows == 0 || p.num_heads == 0) return;  // nothing to write
  if (!m.engine->on_gpu()) return host_merge_states(p);
  m.engine->device->make_current();
  const std::int64_t ctas = merge_ctas(m.config, p.num_rows * p.num_heads);
  const std::int64_t most = std::int64_t{m.engine->device->num_sms()} * m.gpu.loaded->ctas_per_sm;
  void* launch_args[] = {&p};
  m.gpu.kernel.launch({static_cast<unsigned>(std::min(ctas, most))}, {static_cast<unsigned>(m.gpu.tile.warps * 32)}, 0, stream,
                      launch_args, m.engine->has_dependent_launch());
}

const MergeConfig& MergeStates::config() const { return checked(state_).config; }

KernelInfo MergeStates::kernel() const {
  const detail::MergeState& m = checked(state_);
  if (m.engine->on_gpu()) return m.gpu.info;
  return {.kernel = "host", .arch = "cpu", .origin = "built in"};
}

}  // namespace heddle
