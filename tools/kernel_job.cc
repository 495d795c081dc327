#include "tools/kernel_job.h"

#include <fmt/format.h>

#include "engine/host_kernel.h"
#include "planner/plan.h"

namespace heddle::tools {
namespace {

// As the engine decides: decode where a group's heads fit its tile, append where a request may
// have more rows than that.
bool is_in_launch_set(const AttentionConfig& config, Pipeline pipeline) {
  const int group = config.num_qo_heads / config.num_kv_heads, limit = PlanConfig().max_decode_rows;
  if (pipeline == Pipeline::decode) return group <= limit;
  return group > limit || config.max_qo_len == 0 || std::int64_t{config.max_qo_len} * group > limit;
}

}  // namespace

CompileRequest KernelJob::request() const {
  return {.name = name,
          .unit = unit.text,
          .unit_path = unit.path,
          .headers = template_files(),
          .headers_digest = template_digest(),
          .arch = arch,
          .entry = unit.entry};
}

std::vector<KernelJob> kernel_jobs(const Engine& engine, const AttentionConfig& config,
                                   const std::string& arch) {
  if (config.head_dim % 16 != 0 || config.head_dim > 256) {
    fail(ErrorKind::unsupported,
         "head_dim {} is not supported; it must be a multiple of 16 up to 256.", config.head_dim);
  }
  const Variant& variant = engine.variants().at(config.variant);
  const std::vector<double> values = variant.resolve(config.constants);
  const DeviceLimits limits = limits_of(arch);
  std::vector<KernelJob> jobs;
  for (const Pipeline pipeline : {Pipeline::decode, Pipeline::append}) {
    if (!is_in_launch_set(config, pipeline)) continue;
    KernelJob job{.name = fmt::format("{} of {}", name_of(pipeline), variant.name),
                  .pipeline = pipeline,
                  .arch = arch};
    job.tile = choose_tile(pipeline, config.head_dim, limits);
    job.unit = render_gpu_unit(pipeline, variant, values, config, job.tile);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace heddle::tools
