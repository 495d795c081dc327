// The built-in variants mean what their sources say, one by one and composed at random: the reference
// against formulas written by hand, and the CPU device against the reference.
#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "engine/host_kernel.h"
#include "tests/catch.h"
#include "tests/compositions.h"
#include "tests/engine_support.h"
#include "tests/problem.h"
#include "tests/variant_formulas.h"
#include "tools/parallel.h"

namespace heddle {
std::span<const BuiltinUnit> composed_units();  // of tests/compositions.h, generated
}  // namespace heddle

using namespace heddle;
using namespace heddle_tests;

namespace {

// One request of a batch of two; its last rows stand before the first key where qo_len > kv_len.
struct Request {
  int index, qo_begin, qo_len, kv_len;
};
const std::vector<Request> kRequests = {{0, 0, 5, 150}, {1, 5, 3, 2}};

// A composition keeps the one that its unit was built with.
void settle_rotary_dim(ParamValues& params, const Variant& variant, int width) {
  for (const Param& param : variant.params)
    if (param.name == "rotary_dim" && variant.components.size() == 1) params[param.name] = width;
}

// o and lse of one request by the reference and by the formulas; says where they part.
class FormulaCheck {
 public:
  FormulaCheck(const Engine& engine, const Variant& variant, tools::Random& random)
      : engine_(engine), variant_(variant), random_(random),
        config_{.variant = variant.name, .num_qo_heads = 6, .num_kv_heads = 2, .head_dim = 16},
        params_(random_params(random, variant, false)) {
    settle_rotary_dim(params_, variant, 8 * random.below(2));
  }

  std::string problem() {
    const tools::VariantTensors own(engine_, variant_, tools::shape_words(config_, qo_lens_, kv_lens_),
                                    params_, random_.bits());
    const tools::KeyRanges all_ranges = tools::random_key_ranges(variant_, random_.bits(), qo_lens_, kv_lens_);
    for (const Request& request : kRequests) {
      const Row q = values(request.qo_len * config_.num_qo_heads), k = values(request.kv_len * config_.num_kv_heads),
                v = values(request.kv_len * config_.num_kv_heads);
      const tools::KeyRanges ranges = all_ranges.part(std::size_t(request.qo_begin), std::size_t(request.qo_len));
      const std::string found = compare({.num_qo_heads = config_.num_qo_heads, .num_kv_heads = config_.num_kv_heads,
                                         .head_dim = config_.head_dim, .request = request.index,
                                         .qo_begin = request.qo_begin, .qo_len = request.qo_len,
                                         .kv_len = request.kv_len, .q = q, .k = k, .v = v, .tensors = own.on_host(),
                                         .first_keys = ranges.first, .end_keys = ranges.end});
      if (!found.empty()) return fmt::format("{}: {}", variant_.name, found);
    }
    return "";
  }

 private:
  Row values(int rows) {
    Row values(std::size_t(rows * config_.head_dim));
    for (double& x : values) x = random_.normal();
    return values;
  }

  std::string compare(const ReferenceInput& input) const {
    const ReferenceResult found = reference(engine_, variant_, params_, input);
    const ReferenceResult wanted = attend_by_formula(variant_, params_, input);
    double largest = 1;
    for (const double x : wanted.o) largest = std::max(largest, std::abs(x));
    const std::string o = parting(found.o, wanted.o, 1e-5 * largest);
    if (!o.empty()) return "o " + o;
    const std::string lse = variant_.use_softmax ? parting(found.lse, wanted.lse, 1e-4) : "";
    return lse.empty() ? "" : "lse " + lse;
  }

  static std::string parting(const Row& found, const Row& wanted, double allowed) {
    if (found.size() != wanted.size()) return fmt::format("has {} elements, not {}", found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != wanted[i] && !(std::abs(found[i] - wanted[i]) <= allowed))
        return fmt::format("{} is {}, but the formula gives {}", i, found[i], wanted[i]);
    return "";
  }

  const Engine& engine_;
  const Variant& variant_;
  tools::Random& random_;
  const AttentionConfig config_;
  ParamValues params_;
  const std::vector<std::int32_t> qo_lens_ = {5, 3}, kv_lens_ = {150, 2};
};

// The CPU device against the reference: few rows, but of decode and append, cut, and without a key.
std::string device_problem(Engine& engine, const Variant& variant, tools::Random& random, int batches) {
  const int group = 1 + random.below(6);
  AttentionConfig config{.variant = variant.name, .num_qo_heads = 2 * group, .num_kv_heads = 2, .head_dim = 64,
                         .page_size = 16 * random.below(2)};
  settle_rotary_dim(config.constants, variant, 32 * random.below(2));
  Attention attention = engine.attention(config);
  for (int i = 0; i < batches; ++i) {
    const ProblemShape shape{.config = config, .params = random_params(random, variant, false),
                             .qo_lens = {1, 2, 17 + random.below(3), 4, 0},
                             .kv_lens = {400 + random.below(300), 60 + random.below(10), 33, 2, 5},
                             .want_lse = variant.use_softmax};
    Problem problem(engine, shape, random.bits());
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    const Verdict verdict = problem.judge();
    if (!verdict.ok) return verdict.what;
  }
  return "";
}

struct Findings {
  std::mutex mutex;
  std::vector<std::string> list;
  void add(const std::string& problem) {
    const std::lock_guard lock(mutex);
    if (!problem.empty()) list.push_back(problem);
  }
};

void check_each(Engine& engine, const std::vector<std::string>& names, int batches) {
  Findings findings;
  tools::parallel_for(int(names.size()), [&](int i) {
    tools::Random random(31 + std::uint64_t(i));
    const Variant& variant = engine.variants().at(names[i]);
    findings.add(FormulaCheck(engine, variant, random).problem());
    findings.add(device_problem(engine, variant, random, batches));
  });
  for (const std::string& problem : findings.list) UNSCOPED_INFO(problem);
  CHECK(findings.list.empty());
}

}  // namespace

TEST_CASE("every built-in variant computes its formula", "[engine][catalogue]") {
  Engine engine = cpu_engine();
  const std::vector<std::string> names = engine.variants().names();
  for (const std::string& name : names) {
    INFO(name);
    for (const Component& part : engine.variants().at(name).components) CHECK(formulas().contains(part.name));
  }
  CHECK(names.size() >= 25);
  check_each(engine, names, 3);
}

TEST_CASE("random compositions compute their parts' formulas, chained", "[engine][catalogue]") {
  add_units(composed_units());
  VariantRegistry registry;
  add_compositions(registry);
  Engine engine = cpu_engine();
  std::vector<std::string> names;
  std::set<std::string> parts;
  for (int i = 0; i < kCompositions; ++i) {
    names.push_back(composition_name(i));
    const Variant& variant = registry.at(names.back());
    for (const Component& part : variant.components) parts.insert(part.name);
    engine.register_variant(variant);
    const Attention attention = engine.attention(
        {.variant = variant.name, .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64});
    CHECK(attention.kernels().at(0).origin == "built in");
  }
  CHECK(parts.size() >= 24);
  check_each(engine, names, 3);
}
