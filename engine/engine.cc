#include "engine/engine.h"

#include <cmath>

#include "engine/kernel_source.h"
#include "engine/state.h"
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
      fail(ErrorKind::unsupported, "There is no GPU to use. {}", Driver::why_not());
  }
  info = {DeviceKind::cpu, "CPU", "cpu", 0, options.device == DeviceKind::cpu ? "The CPU was asked for." : Driver::why_not()};
}

NvrtcCompiler& EngineState::nvrtc_compiler() {
  const std::lock_guard lock(mutex);
  if (!nvrtc) nvrtc = std::make_unique<NvrtcCompiler>();
  return *nvrtc;
}

namespace {

constexpr int kMaxDecodeRows = 16;  // rows of the decode kernel's one m16 tile
constexpr int kMaxHeadDim = 256;
// The CPU device plans for a few CTAs, so that batches are cut and merged there too.
constexpr int kHostCtas = 6;
constexpr TileConfig kHostTiles[kNumPipelines] = {{16, 64, 1, 1, 1, 0}, {64, 64, 1, 1, 1, 0}};

void check_config(const AttentionConfig& c) {
  const auto positive = [](const char* name, int value) {
    if (value < 1) fail(ErrorKind::invalid_argument, "{} is {}; it must be at least 1.", name, value);
  };
  positive("num_qo_heads", c.num_qo_heads);
  positive("num_kv_heads", c.num_kv_heads);
  positive("head_dim", c.head_dim);
  if (c.num_qo_heads % c.num_kv_heads != 0)
    fail(ErrorKind::invalid_argument, "num_qo_heads {} is not a multiple of num_kv_heads {}.", c.num_qo_heads,
         c.num_kv_heads);
  if (c.head_dim % 16 != 0 || c.head_dim > kMaxHeadDim)
    fail(ErrorKind::unsupported, "head_dim {} is not supported; it must be a multiple of 16 up to {}.", c.head_dim,
         kMaxHeadDim);
  for (DType dtype : {c.q_dtype, c.kv_dtype})
    if (dtype != DType::bf16 && dtype != DType::f16)
      fail(ErrorKind::unsupported, "dtype {} is not supported for q, k and v; bf16 and f16 are.", name_of(dtype));
  if (c.q_dtype != c.kv_dtype)
    fail(ErrorKind::unsupported, "q_dtype {} and kv_dtype {} differ; they must be equal.", name_of(c.q_dtype),
         name_of(c.kv_dtype));
  if (c.page_size < 0)
    fail(ErrorKind::invalid_argument, "page_size is {}; it must be at least 1, or 0 for ragged K/V.", c.page_size);
  if (!(c.sm_scale >= 0) || std::isinf(c.sm_scale))
    fail(ErrorKind::invalid_argument, "sm_scale is {}; it must be finite and above 0 (0 stands for 1 / sqrt(head_dim)).",
         c.sm_scale);
  if (c.max_qo_len < 0)
    fail(ErrorKind::invalid_argument, "max_qo_len is {}; it must be at least 1, or 0 for any.", c.max_qo_len);
}

// The launch set follows from the shapes and the declared maximum alone.
bool holds(const AttentionConfig& c, Pipeline pipeline) {
  const int group = c.num_qo_heads / c.num_kv_heads;
  if (pipeline == Pipeline::decode) return group <= kMaxDecodeRows;
  return group > kMaxDecodeRows || c.max_qo_len == 0 || std::int64_t{c.max_qo_len} * group > kMaxDecodeRows;
}

KernelCache::Result find_image(EngineState& engine, const AttentionState& a, Pipeline pipeline, const TileConfig& tile) {
  const Unit unit = render_gpu_unit(pipeline, a.variant, a.defaults, a.config, tile);
  const CompileRequest request{.name = fmt::format("{} of {}", name_of(pipeline), a.variant.name),
                               .unit = unit.text, .unit_path = unit.path, .headers = template_files(),
                               .headers_digest = template_digest(), .arch = engine.info.arch, .entry = unit.entry};
  return engine.cache.get(engine.nvrtc_compiler(), request);
}

// Loads an image; one that the driver refuses is dropped and compiled once more.
LoadedKernel load(EngineState& engine, const AttentionState& a, Pipeline pipeline, const DeviceLimits& limits) {
  LoadedKernel loaded;
  loaded.tile = choose_tile(pipeline, a.config.head_dim, limits);
  KernelCache::Result result = find_image(engine, a, pipeline, loaded.tile);
  try {
    loaded.module = Module(result.artifact->image);
  } catch (const Error& error) {
    if (!Module::refused(error) || result.origin == KernelCache::Origin::compiled) throw;
    engine.cache.forget(result.key);
    result = find_image(engine, a, pipeline, loaded.tile);
    loaded.module = Module(result.artifact->image);
  }
  loaded.kernel = loaded.module.kernel(fmt::format("heddle_{}", name_of(pipeline)));
  loaded.kernel.set_max_dynamic_smem(loaded.tile.smem_bytes);
  loaded.kernel.load();
  loaded.info = {std::string(name_of(pipeline)), engine.info.arch, result.artifact->compile_ms,
                 loaded.kernel.registers(), loaded.tile.smem_bytes, result.artifact->spill_bytes, name_of(result.origin)};
  return loaded;
}

PipelineShape shape_of(Pipeline pipeline, const TileConfig& tile, int num_ctas, int head_dim) {
  return {.present = true, .num_ctas = num_ctas, .tile_rows = tile.rows, .tile_kv = tile.kv,
          .cost = cost_model(pipeline, tile.rows, tile.kv, head_dim)};
}

void load_kernels(EngineState& engine, AttentionState& a) {
  if (engine.on_gpu()) engine.device->make_current();
  for (Pipeline pipeline : {Pipeline::decode, Pipeline::append}) {
    if (!holds(a.config, pipeline)) continue;
    const int i = static_cast<int>(pipeline);
    if (!engine.on_gpu()) {
      a.plan.pipeline[i] = shape_of(pipeline, kHostTiles[i], kHostCtas, a.config.head_dim);
      continue;
    }
    const Device& device = *engine.device;
    a.gpu[i] = load(engine, a, pipeline, {device.num_sms(), device.max_shared_per_block(), device.shared_per_sm()});
    const int ctas = a.gpu[i].kernel.max_active_blocks_per_sm(a.gpu[i].tile.warps * 32, a.gpu[i].tile.smem_bytes);
    a.plan.pipeline[i] =
        shape_of(pipeline, a.gpu[i].tile, device.num_sms() * std::min(ctas, a.gpu[i].tile.ctas_per_sm), a.config.head_dim);
  }
  if (!engine.on_gpu()) a.host = host_kernel(engine.cache, a.variant, a.defaults);
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
  detail::check_config(config);
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
  state->defaults = state->variant.resolve(config.constants);
  state->args = arg_layout(state->variant);
  state->sm_scale = config.sm_scale > 0 ? config.sm_scale : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  state->plan = {.num_kv_heads = config.num_kv_heads, .group = config.num_qo_heads / config.num_kv_heads,
                 .head_dim = config.head_dim, .page_size = config.page_size, .max_decode_rows = detail::kMaxDecodeRows};
  detail::load_kernels(*state_, *state);
  Attention attention;
  attention.state_ = std::move(state);
  return attention;
}

}  // namespace heddle
