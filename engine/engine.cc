#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <vector>

#include "engine/load_kernel.h"
#include "planner/cost_table.h"

namespace heddle {
namespace detail {

EngineState::EngineState(const EngineOptions& given)
    : options(given), cache(CacheOptions{.disk = given.use_disk_cache, .dir = given.cache_dir}) {
  if (options.device != DeviceKind::cpu) {
    if (Driver::get()) {
      device = Device::open(options.ordinal);
      info = {DeviceKind::cuda, device->name(), arch_of(device->major(), device->minor()), device->num_sms(), ""};
      return;
    }
    if (options.device == DeviceKind::cuda)
      fail(ErrorKind::unsupported, "There is no GPU to use: {}.", Driver::why_not());
  }
  if (options.device == DeviceKind::cpu && options.ordinal != 0)
    fail(ErrorKind::invalid_argument, "ordinal is {}, but the CPU device was asked for; it numbers GPUs.", options.ordinal);
  info = {DeviceKind::cpu, "CPU", "cpu", 0, options.device == DeviceKind::cpu ? "The CPU was asked for." : Driver::why_not()};
}

NvrtcCompiler& EngineState::nvrtc_compiler() {
  const std::lock_guard lock(mutex);
  if (!nvrtc) nvrtc = std::make_unique<NvrtcCompiler>(options.nvrtc_dirs);
  return *nvrtc;
}

namespace {

// The CPU device plans for a few CTAs, at the price of two decode CTAs an SM, so that batches are cut and merged there too.
constexpr int kHostCtas = 6;
constexpr TileConfig kHostTiles[kNumPipelines] = {{16, 64, 1, 1, 2, 0}, {64, 64, 1, 1, 1, 0}};

struct WantedKernel {
  std::string_view name;
  LoadedKernel* to;
  std::function<KernelBuild()> build;
  std::future<KernelBuild> started;
};

std::vector<WantedKernel> wanted_kernels(EngineState& engine, AttentionState& a) {
  const DeviceLimits limits{engine.device->num_sms(), engine.device->max_shared_per_block(), engine.device->shared_per_sm(),
                            engine.info.arch == "sm_90a"};
  std::vector<WantedKernel> wanted;
  for (Pipeline pipeline : launch_set(a.config))
    wanted.push_back({name_of(pipeline), &a.gpu[static_cast<int>(pipeline)], [&engine, &a, pipeline, limits] {
                        return build_kernel(engine.cache, engine.nvrtc_compiler(), pipeline, a.variant, a.defaults,
                                            a.config, engine.info.arch, limits);
                      }});
  if (a.config.append_kv != AppendKv::none)
    wanted.push_back({"append_kv", &a.append_kv, [&engine, &a] {
                        return build_append_kv(engine.cache, engine.nvrtc_compiler(), a.variant, a.defaults, a.config,
                                               engine.info.arch);
                      }});
  if (transforms_keys(a.variant, a.config))
    wanted.push_back({"transformed_keys", &a.transformed_keys, [&engine, &a] {
                        return build_transformed_keys(engine.cache, engine.nvrtc_compiler(), a.variant, a.defaults,
                                                      a.config, engine.info.arch);
                      }});
  return wanted;
}

// Compiled side by side: an Attention that the cache does not have takes as long as the slowest of its kernels, not as
// all of them.
void load_on_gpu(EngineState& engine, AttentionState& a) {
  engine.device->make_current();
  std::vector<WantedKernel> wanted = wanted_kernels(engine, a);
  for (std::size_t i = 1; i < wanted.size(); ++i) wanted[i].started = std::async(wanted[i].build);
  for (WantedKernel& kernel : wanted)
    *kernel.to = load_kernel(engine, kernel.name,
                             [&] { return kernel.started.valid() ? kernel.started.get() : kernel.build(); });
  for (Pipeline pipeline : launch_set(a.config)) {
    const int i = static_cast<int>(pipeline);
    const TileConfig& tile = a.gpu[i].tile;
    const int ctas = engine.device->num_sms() * std::min(a.gpu[i].loaded->ctas_per_sm, tile.ctas_per_sm);
    a.plan.pipeline[i] = pipeline_shape(pipeline, tile, ctas, head_dims(a.config));
  }
  a.plan.transforms_keys = static_cast<bool>(a.transformed_keys.kernel);
}

void load_on_cpu(EngineState& engine, AttentionState& a) {
  for (Pipeline pipeline : launch_set(a.config)) {
    const int i = static_cast<int>(pipeline);
    a.plan.pipeline[i] = pipeline_shape(pipeline, kHostTiles[i], kHostCtas, head_dims(a.config));
  }
  const auto begin = std::chrono::steady_clock::now();
  a.host = host_kernel(engine.cache, a.variant, a.defaults);
  a.host.info.load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// What units are rendered with. A run-time param may have no default: plan() and run() give its value,
// and any one in its range stands in until then.
std::vector<double> settled_values(const Variant& variant, const ParamValues& constants) {
  ParamValues values = constants;
  for (const Param& param : variant.params)
    if (!param.constant && !param.has_default) values[param.name] = param.min.value_or(param.max.value_or(0));
  return variant.resolve(values);
}

bool has_every_default(const Variant& variant) {
  return std::all_of(variant.params.begin(), variant.params.end(),
                     [](const Param& param) { return param.constant || param.has_default; });
}

}  // namespace
}  // namespace detail

Engine::Engine(EngineOptions options) : state_(std::make_shared<detail::EngineState>(options)) {}

void Engine::register_variant(Variant variant) {
  const std::lock_guard lock(state_->mutex);
  state_->variants.add(std::move(variant));
}

void Engine::register_variant_file(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->variants.add(Variant::from_file(path, state_->variants));
}

const VariantRegistry& Engine::variants() const { return state_->variants; }
const DeviceInfo& Engine::device() const { return state_->info; }

Attention Engine::attention(const AttentionConfig& config) {
  check_config(config);
  auto state = std::make_shared<detail::AttentionState>();
  state->engine = state_;
  state->config = config;
  {
    const std::lock_guard lock(state_->mutex);
    state->variant = state_->variants.at(config.variant);
  }
  for (const auto& [name, value] : config.constants)
    for (const Param& param : state->variant.params)
      if (param.name == name && !param.constant)
        fail(ErrorKind::invalid_argument, "Param \"{}\" of variant {} is not a constant; give it to plan() and run().",
             name, config.variant);
  state->defaults = detail::settled_values(state->variant, config.constants);
  check_rows(state->variant, state->defaults, config);
  check_sharing(state->variant, config);
  check_append_kv(state->variant, config);
  state->has_every_default = detail::has_every_default(state->variant);
  state->args = arg_layout(state->variant);
  state->sm_scale = config.sm_scale > 0 ? config.sm_scale : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  state->plan = {.num_kv_heads = config.num_kv_heads, .group = config.num_qo_heads / config.num_kv_heads,
                 .head_dim = config.head_dim, .head_dim_vo = config.head_dim_vo, .page_size = config.page_size,
                 .max_decode_rows = decode_rows(config),
                 .batch_invariant = config.batch_invariant, .share_prefixes = config.share_prefixes,
                 .rows_given = state->variant.mask.rows_given,
                 .sharing_cost = state_->on_gpu() ? kSharingCost : 0};
  if (state_->on_gpu())
    detail::load_on_gpu(*state_, *state);
  else
    detail::load_on_cpu(*state_, *state);
  Attention attention;
  attention.state_ = std::move(state);
  return attention;
}

}  // namespace heddle
