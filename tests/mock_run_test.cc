// The GPU's side of plan(), run() and attention() against the mock driver: what is called, in which
// order, and what it costs. Kernels are really compiled, and never run. An executable of its own: no
// other test may have looked for a driver before.
#include <algorithm>
#include <chrono>

#include "runtime/driver.h"
#include "tests/count_allocations.h"
#include "tests/mock_engine.h"
#include "tests/patience.h"
#include "tools/lengths_only.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

// Decode of one request of 16 keys; tensors that no kernel will ever read.
struct MockStep {
  explicit MockStep(Engine& engine, const std::string& variant = "softmax")
      : attention(engine.attention({.variant = variant, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = 1})),
        workspace(attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16, .max_qo_len = 1})) {
    tensors.q = tensors.o = {memory, DType::bf16, 3, {1, 4, 64}, {256, 64, 1}};
    tensors.k = tensors.v = {memory, DType::bf16, 4, {1, 16, 2, 64}, {2048, 128, 64, 1}};
    tensors.kv_indices = reinterpret_cast<const std::int32_t*>(memory);
  }

  void plan(Stream stream, const ParamValues& params = {}) { attention.plan(lengths.batch(), workspace, stream, params); }
  void run(Stream stream, const ParamValues& params = {}) { attention.run(workspace, tensors, params, stream); }

  std::string calls_of(const std::function<void()>& call) { return mock_calls_of(call); }

  alignas(16) char memory[64] = {};
  tools::LengthsOnly lengths{{1}, {16}, 16};
  Attention attention;
  Workspace workspace;
  Tensors tensors;
};

}  // namespace

TEST_CASE("run and plan on another stream wait for the last one, on the same one for nothing", "[engine][streams]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          MockStep step(engine);
          const StreamHandle a = StreamHandle::create(), b = StreamHandle::create();
          const auto is = [&](const std::function<void()>& call, const std::string& wanted) {
            const std::string found = step.calls_of(call);
            expect(found == wanted, wanted + "and not " + found);
          };
          is([&] { step.plan(a.get()); }, "copy_async cuEventRecord(1) ");
          is([&] { step.run(a.get()); }, "cuLaunchKernelEx ");
          is([&] { step.run(b.get()); }, "cuEventRecord(1) cuStreamWaitEvent(2) cuLaunchKernelEx ");
          is([&] { step.run(b.get()); }, "cuLaunchKernelEx ");
          is([&] { step.plan(a.get()); }, "cuEventRecord(2) cuStreamWaitEvent(1) copy_async cuEventRecord(1) ");
          is([&] { step.run(nullptr); }, "cuEventRecord(1) cuStreamWaitEvent(0) cuLaunchKernelEx ");
        }) == 0);
}

TEST_CASE("a capture waits for nothing outside of it, and nothing outside for it", "[engine][streams]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          MockStep step(engine);
          const StreamHandle a = StreamHandle::create(), b = StreamHandle::create();
          step.plan(a.get());
          Graph::begin_capture(b.get());
          const std::string captured = step.calls_of([&] { step.run(b.get()); });
          expect(captured == "cuLaunchKernelEx ", "a launch and no wait, not " + captured);
          expect_in(error_of([&] { step.plan(b.get()); }).what(), "Plan before the capture");
          const std::string beside = step.calls_of([&] { step.plan(a.get()); });
          expect(beside == "copy_async cuEventRecord(1) ", "a plan beside the capture, not " + beside);
          const Graph graph = Graph::end_capture(b.get());
          // The captured launch was no use of b: what ran last, ran on a.
          const std::string after = step.calls_of([&] { step.run(b.get()); });
          expect(after == "cuEventRecord(1) cuStreamWaitEvent(2) cuLaunchKernelEx ", "b behind a, not " + after);

          step.plan(a.get());
          Graph::begin_capture(a.get());
          step.run(a.get());
          expect_in(error_of([&] { step.run(b.get()); }).what(), "is being captured; end the capture");
          Graph::end_capture(a.get());
          step.run(b.get());
        }) == 0);
}

TEST_CASE("run allocates nothing after its first call, with params given too", "[engine][allocations]") {
  CHECK(with_mock_engine("quiet", [](Engine& engine) {
          const ParamValues given = {{"cap", 50}, {"window", 7}};
          for (const ParamValues& params : {ParamValues{}, given}) {
            MockStep step(engine, "gemma2");
            step.plan(nullptr, params);
            step.run(nullptr, params);
            const long before = allocations;
            for (int layer = 0; layer < 60; ++layer) step.run(nullptr, params);
            const long after = allocations;
            expect(before > 0 && after == before, "no allocation, not " + std::to_string(after - before));
          }
        }) == 0);
}

TEST_CASE("append_kv allocates nothing after its first call", "[engine][append_kv][allocations]") {
  CHECK(with_mock_engine("quiet", [](Engine& engine) {
          for (const AppendKv mode : {AppendKv::copy, AppendKv::transform}) {
            Attention attention = engine.attention(
                {.variant = "rope", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = 1, .append_kv = mode});
            Workspace workspace = attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16, .max_qo_len = 1});
            alignas(16) static char memory[4096], new_rows[256];
            const Tensor rows{new_rows, DType::bf16, 3, {1, 2, 64}, {128, 64, 1}};
            const Tensor pages{memory, DType::bf16, 4, {1, 16, 2, 64}, {2048, 128, 64, 1}};
            const AppendTensors tensors{.new_k = rows, .new_v = rows, .k = pages, .v = pages,
                                        .kv_indices = reinterpret_cast<const std::int32_t*>(memory)};
            const tools::LengthsOnly lengths({1}, {16}, 16);
            attention.plan(lengths.batch(), workspace);
            attention.append_kv(workspace, tensors);
            const long before = allocations;
            for (int layer = 0; layer < 60; ++layer) attention.append_kv(workspace, tensors);
            const long after = allocations;
            expect(before > 0 && after == before, "no allocation, not " + std::to_string(after - before));
          }
        }) == 0);
}

TEST_CASE("a kernel from disk that the driver refuses is compiled again, a new one is an error",
          "[engine][cache]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          const MockStep first(engine);
          setenv("MOCK_CUDA", "cuModuleLoadData=200 once", 1);
          Engine second({.device = DeviceKind::cuda, .cache_dir = test_cache_dir()});
          const MockStep again(second);
          expect(again.attention.kernels().at(0).origin == "compiled", "a second compile");
          Engine third({.device = DeviceKind::cuda, .cache_dir = test_cache_dir()});
          const MockStep found(third);
          expect(found.attention.kernels().at(0).origin == "disk", "the new one on disk");
          setenv("MOCK_CUDA", "cuModuleLoadData=200", 1);
          Engine fourth({.device = DeviceKind::cuda, .use_disk_cache = false});
          expect_in(error_of([&] { const MockStep refused(fourth); }).what(), "INVALID_IMAGE");
        }) == 0);
}

TEST_CASE("run costs little beyond the driver's own", "[engine]") {
  CHECK(with_mock_engine("quiet", [](Engine& engine) {
          const ParamValues given = {{"cap", 50}, {"window", 7}};
          MockStep step(engine, "gemma2");
          step.plan(nullptr, given);
          double best_ns = 1e9;  // of ten rounds: what else runs on the machine is no cost of a run's
          for (int round = 0; round < 10; ++round) {
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < 2'000; ++i) step.run(nullptr, given);
            const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
            best_ns = std::min(best_ns, took.count() / 2'000);
          }
          expect(best_ns < 1000 * patience(), "a run in less than 1 us");  // 80 ns
        }) == 0);
}

TEST_CASE("run takes new values of its params, and refuses those of another mask", "[engine]") {
  CHECK(with_mock_engine("quiet", [](Engine& engine) {
          MockStep step(engine, "gemma2");
          step.plan(nullptr, {{"window", 7}});
          step.run(nullptr, {{"window", 7}});
          step.run(nullptr, {{"window", 7}, {"cap", 20}});
          expect_in(error_of([&] { step.run(nullptr, {{"window", 8}}); }).what(), "plan again");
          expect_in(error_of([&] { step.run(nullptr); }).what(), "plan again");
          expect_in(error_of([&] { step.run(nullptr, {{"windw", 7}}); }).what(), "windw");
          expect_in(error_of([&] { step.run(nullptr, {{"windw", 7}}); }).what(), "windw");  // not remembered as right
          step.run(nullptr, {{"window", 7}});
        }) == 0);
}

TEST_CASE("a kernel is loaded once for all Attentions that have it, and unloaded with the last", "[engine][modules]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          const auto count = [](const std::string& name) {
            const std::string all = mock_calls();
            int found = 0;
            for (std::size_t at = all.find(name); at != std::string::npos; at = all.find(name, at + 1)) ++found;
            return found;
          };
          AttentionConfig config{.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = 1};
          {
            const Attention first = engine.attention(config), second = engine.attention(config);
            expect(count("cuModuleLoadData") == 1, "one module for two");
            expect(second.kernels()[0].registers == first.kernels()[0].registers, "the same figures");
            config.num_qo_heads = 8;  // another group: another kernel
            const Attention other = engine.attention(config);
            expect(count("cuModuleLoadData") == 2 && count("cuModuleUnload") == 0, "two modules");
          }
          expect(count("cuModuleUnload") == 2, "unloaded with the last");
          engine.attention(config);
          expect(count("cuModuleLoadData") == 3, "loaded again");
        }) == 0);
}

TEST_CASE("kernels of one Attention are compiled side by side, and one that cannot be is its error", "[engine][cache]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          // Of a shape that no other test has put into the cache.
          AttentionConfig config{.variant = "causal", .num_qo_heads = 6, .num_kv_heads = 2, .head_dim = 40, .append_kv = AppendKv::copy};
          const auto origins = [&] {
            std::string text;
            const Attention attention = engine.attention(config);
            for (const KernelInfo& kernel : attention.kernels()) text += kernel.kernel + " " + kernel.origin + " ";
            return text;
          };
          expect(origins() == "decode compiled append compiled append_kv compiled ", "three kernels, each compiled");
          expect(origins() == "decode memory append memory append_kv memory ", "all from memory");
          engine.register_variant(Variant::from_json(
              R"({"name": "broken", "hooks": {"logits_transform": "return no_such_word;"}})", "broken.json", engine.variants()));
          config.variant = "broken";
          for (int i = 0; i < 2; ++i) {
            const std::string why = error_of([&] { engine.attention(config); }).what();
            expect_in(why, "broken.json");
            expect_in(why, "no_such_word");
          }
          config.variant = "softmax";
          expect(origins() == "decode compiled append compiled append_kv memory ", "others go on");
        }) == 0);
}
