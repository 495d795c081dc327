// heddle verify: one configuration, or many random ones, against the double-precision reference.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "planner/lengths.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/verbs.h"
#include "tools/verify_case.h"
#include "tools/verify_random.h"

namespace heddle::tools {
namespace {

struct Setting {
  std::string variant, heads = "8,2,64", qo = "4x1", kv = "[1,17,100,333]",
              dtype = "bf16", layout = "NHD";
  std::vector<std::string> params;
  int page = 16, max_qo_len = 0, max_requests = 0, random = 0;
  bool batch_invariant = false, portable = false;
  std::uint64_t seed = 0;
  std::string device = "auto", json;
};

AttentionConfig config_of(Engine& engine, const Setting& setting) {
  const Heads heads = parse_heads(setting.heads);
  check_at_least(setting.page, 0, "--page");
  AttentionConfig config{.variant = resolve_variant(engine, setting.variant.empty() ? "softmax" : setting.variant),
                         .num_qo_heads = heads.num_qo_heads,
                         .num_kv_heads = heads.num_kv_heads,
                         .head_dim = heads.head_dim,
                         .head_dim_vo = heads.head_dim_vo,
                         .q_dtype = parse_dtype(setting.dtype),
                         .kv_dtype = parse_dtype(setting.dtype),
                         .page_size = setting.page,
                         .max_qo_len = setting.max_qo_len,
                         .max_requests = setting.max_requests,
                         .batch_invariant = setting.batch_invariant,
                         .portable = setting.portable};
  // Constants are fixed with the Attention, the others are given to plan() and run().
  const ParamValues given = parse_params(setting.params);
  for (const Param& param : engine.variants().at(config.variant).params) {
    if (param.constant && given.contains(param.name))
      config.constants[param.name] = given.at(param.name);
  }
  return config;
}

ParamValues run_time_params(const AttentionConfig& config, const Setting& setting) {
  ParamValues params = parse_params(setting.params);
  for (const auto& [name, value] : config.constants) params.erase(name);
  return params;
}

VerifyCase case_of(Engine& engine, const Setting& setting) {
  VerifyCase given{.config = config_of(engine, setting), .layout = parse_layout(setting.layout), .seed = setting.seed};
  given.kv_lens = parse_lengths(setting.kv);
  given.qo_lens = parse_qo_lengths(setting.qo, given.kv_lens.size());
  given.params = run_time_params(given.config, setting);
  return given;
}

Attention make_attention(Engine& engine, const AttentionConfig& config) {
  Progress progress(1);
  progress.step(fmt::format("compiling {}, or finding it in the cache", config.variant));
  return engine.attention(config);
}

int verify_one(Engine& engine, const Setting& setting) {
  const VerifyCase given = case_of(engine, setting);
  Attention attention = make_attention(engine, given.config);
  const StepCheck check = verify_case(engine, attention, given);
  const std::string& variant = given.config.variant;
  fmt::print(
      "{} on {}: {}\nlargest error {:.3e}, tolerance {:.3e}; {}\n", variant,
      engine.device().name, check.ok() ? "right" : check.problem(), check.max_error,
      check.tolerance,
      attention.variant().use_softmax ? fmt::format("of lse {:.1e}", check.max_lse_error) : "no lse without softmax");
  write_json(setting.json, {{"ok", check.ok()},
                            {"max_error", check.max_error},
                            {"tolerance", check.tolerance},
                            {"max_lse_error", check.max_lse_error},
                            {"device", engine.device().kind == DeviceKind::cuda ? "cuda" : "cpu"},
                            {"device_name", engine.device().name},
                            {"variant", variant},
                            {"seed", setting.seed}});
  return check.ok() ? 0 : 1;
}

// What --random draws by itself cannot be given too.
void check_random(const Setting& setting) {
  check_at_least(setting.random, 1, "--random");
  const Setting usual;
  const auto refuse = [](bool is_given, const char* flag) {
    if (is_given)
      fail(ErrorKind::invalid_argument, "--random draws what {} says; leave one of the two out.", flag);
  };
  refuse(setting.heads != usual.heads, "--heads");
  refuse(setting.page != usual.page, "--page");
  refuse(setting.qo != usual.qo, "--qo");
  refuse(setting.kv != usual.kv, "--kv");
  refuse(setting.dtype != usual.dtype, "--dtype");
  refuse(setting.layout != usual.layout, "--layout");
  refuse(!setting.params.empty(), "--param");
  refuse(setting.max_qo_len != usual.max_qo_len, "--max-qo-len");
  refuse(setting.max_requests != usual.max_requests, "--max-requests");
}

int verify_many(Engine& engine, const Setting& setting) {
  check_random(setting);
  const RandomVerdict verdict = verify_random(
      engine, {.count = setting.random, .seed = setting.seed, .variant = setting.variant,
               .batch_invariant = setting.batch_invariant, .portable = setting.portable});
  fmt::print("{} of {} random configurations right on {}: {} Attentions, {} of compositions; the largest error is {:.2f} "
             "of what was allowed\n",
             verdict.right, setting.random, engine.device().name, verdict.attentions, verdict.compositions, verdict.worst);
  if (!verdict.refused.empty())
    fmt::print("{} compositions were drawn again, as their parts may not stand together (--json has each one's reason), "
               "the last one:\n  {}\n", verdict.refused.size(), verdict.refused.back());
  nlohmann::ordered_json wrong = nlohmann::ordered_json::array();
  for (const WrongCase& one : verdict.wrong) {
    fmt::print("{}\n  {}\n", one.problem, one.command);
    wrong.push_back({{"problem", one.problem}, {"command", one.command}});
  }
  const bool ok = verdict.right == setting.random;
  write_json(setting.json, {{"ok", ok},
                            {"configurations", setting.random},
                            {"right", verdict.right},
                            {"attentions", verdict.attentions},
                            {"compositions", verdict.compositions},
                            {"worst", verdict.worst},
                            {"wrong", wrong},
                            {"refused", verdict.refused},
                            {"device", engine.device().kind == DeviceKind::cuda ? "cuda" : "cpu"},
                            {"device_name", engine.device().name},
                            {"seed", setting.seed}});
  return ok ? 0 : 1;
}

}  // namespace

int verify(const Arguments& arguments) {
  Setting setting;
  Options options("verify", "Runs one configuration, or many random ones, and compares with the double-precision reference.");
  options.text(setting.variant, "--variant",
               "a registered name, several with + between them, or a spec file; softmax where none is given, with "
               "--random any, alone and composed");
  options.text(setting.heads, "--heads", kHeadsHelp);
  options.number(setting.page, "--page", "keys of a page; 0: ragged");
  options.text(setting.qo, "--qo", "query lengths; one length serves all requests");
  options.text(setting.kv, "--kv",
               "KV lengths: 64x4096, 1x131072+255x1024, zipf:256:65536, [1,2,3]");
  options.text(setting.dtype, "--dtype", "bf16 or f16");
  options.text(setting.layout, "--layout", "NHD or HND");
  options.texts(setting.params, "--param", "name=value");
  options.number(setting.max_qo_len, "--max-qo-len", "longest query that is declared; 0: any");
  options.number(setting.max_requests, "--max-requests", "requests that are declared; 0: any");
  options.flag(setting.batch_invariant, "--batch-invariant",
               "cut each request by its own lengths alone, so that its bits never depend on the batch");
  options.flag(setting.portable, "--portable", "only kernels that every architecture has (mma.sync, no wgmma)");
  options.number(setting.random, "--random",
                 "so many random configurations in place of one, each with the command that runs it alone where it is "
                 "wrong; the reference of some needs a C++ compiler");
  options.number(setting.seed, "--seed",
                 "of the values, the order of pages, the rows' ranges of keys where the variant has them given, and of "
                 "what --random draws");
  options.text(setting.device, "--device", "auto, cuda or cpu");
  options.text(setting.json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;

  Engine engine({.device = parse_device(setting.device)});
  return setting.random != 0 ? verify_many(engine, setting) : verify_one(engine, setting);
}

}  // namespace heddle::tools
