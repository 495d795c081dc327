#include "tools/verify_random.h"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "engine/error.h"
#include "tools/options.h"
#include "tools/parallel.h"
#include "tools/progress.h"
#include "tools/random_case.h"
#include "tools/verify_case.h"

namespace heddle::tools {
namespace {

constexpr int kBatches = 10;  // of an Attention
constexpr int kComposedOneIn = 3;

struct Subject {
  std::string variant;  // as --variant takes it
  AttentionConfig config;
};

class Draw {
 public:
  Draw(Engine& engine, const RandomVerify& wanted, RandomVerdict& verdict)
      : engine_(engine), wanted_(wanted), verdict_(verdict), random_(wanted.seed), names_(engine.variants().names()) {}

  Subject subject() {
    Subject subject;
    std::string name;
    if (!wanted_.variant.empty())
      name = resolve_variant(engine_, subject.variant = wanted_.variant);
    else if (random_.below(kComposedOneIn) > 0)
      name = subject.variant = names_[std::size_t(random_.below(int(names_.size())))];
    else
      name = composed(subject.variant);
    subject.config = random_config(random_, engine_.variants().at(name));
    subject.config.batch_invariant = wanted_.batch_invariant || random_.below(6) == 0;
    subject.config.portable = wanted_.portable || random_.below(6) == 0;
    return subject;
  }

 private:
  // Drawn again where the parts may not stand together.
  std::string composed(std::string& text) {
    for (;;) {
      const std::vector<std::string> parts = random_parts(random_, names_);
      text = fmt::format("{}", fmt::join(parts, "+"));
      try {
        const std::string name = composition(engine_, parts);
        ++verdict_.compositions;
        return name;
      } catch (const Error& error) {
        verdict_.refused.push_back(fmt::format("{}: {}", text, error.what()));
      }
    }
  }

  Engine& engine_;
  const RandomVerify& wanted_;
  RandomVerdict& verdict_;
  Random random_;
  std::vector<std::string> names_;
};

struct Outcome {
  std::string problem;  // empty: right
  double ratio = 0;     // of the error to what is allowed
};

Outcome outcome_of(const Engine& engine, Attention& attention, const VerifyCase& given) {
  try {
    const StepCheck check = verify_case(engine, attention, given);
    return {check.problem(), check.tolerance > 0 ? check.max_error / check.tolerance : 0};
  } catch (const Error& error) {
    return {error.what()};
  }
}

}  // namespace

RandomVerdict verify_random(Engine& engine, const RandomVerify& wanted) {
  RandomVerdict verdict{.attentions = (wanted.count + kBatches - 1) / kBatches};
  std::vector<Subject> subjects;
  Draw draw(engine, wanted, verdict);
  for (int i = 0; i < verdict.attentions; ++i) subjects.push_back(draw.subject());
  Progress progress(wanted.count);
  std::mutex mutex;
  parallel_for(verdict.attentions, [&](int index) {
    const Subject& subject = subjects[std::size_t(index)];
    Attention attention = engine.attention(subject.config);
    Random random(wanted.seed * 1000003 + std::uint64_t(index));
    for (int i = index * kBatches; i < std::min(wanted.count, (index + 1) * kBatches); ++i) {
      const RandomBatch batch = random_batch(random, subject.config, attention.variant());
      const VerifyCase given{.config = subject.config, .layout = batch.layout, .qo_lens = batch.qo_lens,
                             .kv_lens = batch.kv_lens, .params = batch.params, .seed = random.bits() % 1000000};
      const Outcome outcome = outcome_of(engine, attention, given);
      const std::lock_guard lock(mutex);
      progress.step(subject.variant);
      verdict.right += outcome.problem.empty();
      verdict.worst = std::max(verdict.worst, outcome.ratio);
      if (!outcome.problem.empty()) verdict.wrong.push_back({outcome.problem, command_of(given, subject.variant)});
    }
  });
  return verdict;
}

}  // namespace heddle::tools
