// Public bug reports about streams, devices and scratch, tried against the mock driver.
#include "runtime/driver.h"
#include "runtime/nvrtc.h"
#include "tests/engine_support.h"
#include "tests/mock_driver.h"
#include "tools/lengths_only.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

// Decode of one request; tensors that no kernel will ever read.
struct Step {
  explicit Step(Engine& engine)
      : attention(engine.attention(
            {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = 1})),
        workspace(attention.workspace(maxima)) {
    tensors.q = tensors.o = {memory, DType::bf16, 3, {1, 4, 64}, {256, 64, 1}};
    tensors.k = tensors.v = {memory, DType::bf16, 4, {1, 16, 2, 64}, {2048, 128, 64, 1}};
    tensors.kv_indices = reinterpret_cast<const std::int32_t*>(memory);
  }
  void plan(int kv_len = 16, Stream stream = nullptr) {
    const tools::LengthsOnly lengths({1}, {kv_len}, 16);
    attention.plan(lengths.batch(), workspace, stream);
  }
  void run(Stream stream = nullptr) { attention.run(workspace, tensors, {}, stream); }

  static constexpr Maxima maxima{
      .max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 4096, .max_qo_len = 1};
  alignas(16) char memory[64] = {};
  Attention attention;
  Workspace workspace;
  Tensors tensors;
};

std::string calls_of(const std::function<void()>& work) {
  const std::size_t before = std::string(mock_calls()).size();
  work();
  return std::string(mock_calls()).substr(before);
}

int count(const std::string& calls, const std::string& name) {
  int found = 0;
  for (std::size_t at = calls.find(name); at != std::string::npos; at = calls.find(name, at + 1))
    ++found;
  return found;
}

// 0 where the work was content, or where there is no compiler for it.
int with_step(const std::function<void(Engine&, Step&)>& work, const char* role = "") {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was tried: " << *why);
    return 0;
  }
  const std::string cache = test_cache_dir();
  return with_mock(role, [&] {
    Engine engine({.device = DeviceKind::cuda, .cache_dir = cache});
    Step step(engine);
    work(engine, step);
  });
}

}  // namespace

TEST_CASE("B52 every launch has the grid of the first", "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          std::string first;
          for (const int kv_len : {16, 1, 4000, 700}) {
            step.plan(kv_len);
            const std::string calls = calls_of([&] { step.run(); });
            const std::string launch =
                calls.substr(calls.find("cuLaunchKernelEx("),
                             calls.find("attributes") - calls.find("cuLaunchKernelEx("));
            if (first.empty()) first = launch;
            expect(launch == first && launch.size() > 20, first + ", not " + launch);
          }
        }) == 0);
}

TEST_CASE("B133 the device is made current before anything is launched or copied",
          "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          // As another library leaves it: no context, or one of its own.
          const auto forget =
              reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "mock_forget_context"));
          expect(forget != nullptr, "the mock's context");
          for (int i = 0; i < 2; ++i) {
            forget(nullptr);
            step.plan();
            forget(nullptr);
            step.run();
            forget(nullptr);
            const Workspace other = step.attention.workspace(Step::maxima);
          }
        }) == 0);
}

TEST_CASE("B136 a plan's host bytes are not written again before their copy has run",
          "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          // The mock's events are always reached: what counts is that each reuse asks.
          std::vector<const std::byte*> places;
          for (int i = 0; i < 20; ++i) {
            const std::string calls = calls_of([&] { step.plan(); });
            expect(count(calls, "cuEventSynchronize") == 1, "one look at the slot's event");
            expect(calls.find("cuEventSynchronize") < calls.find("copy_async"), "before the copy");
            expect(calls.find("copy_async") < calls.rfind("cuEventRecord"), "and a mark behind it");
            places.push_back(step.workspace.plan_bytes().data());
          }
          expect(places[0] != places[1] && places[1] != places[2], "another slot each time");
        }) == 0);
}

TEST_CASE("B172 neither plan nor run waits for the device", "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          const StreamHandle stream = StreamHandle::create();
          const std::string calls = calls_of([&] {
            for (int i = 0; i < 3; ++i) step.plan(700, stream.get()), step.run(stream.get());
          });
          for (const char* wait : {"cuStreamSynchronize", "cuCtxSynchronize", "copy ", "cuMemAlloc",
                                   "cuMemHostAlloc", "cuMemFree"})
            expect(count(calls, wait) == 0, std::string("no ") + wait);
        }) == 0);
}

TEST_CASE("B169 a new length loads and compiles nothing", "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          const std::string calls = calls_of([&] {
            for (int kv_len = 0; kv_len < 300; kv_len += 7) step.plan(kv_len), step.run();
          });
          expect(count(calls, "cuModule") == 0 && count(calls, "cuFunc") == 0, "launches alone");
          expect(count(calls, "cuLaunchKernelEx") == 43, "one a length");
        }) == 0);
}

TEST_CASE("B61 each workspace has scratch of its own, and none is the process's",
          "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          const std::string calls = calls_of([&] {
            const Workspace a = step.attention.workspace(Step::maxima),
                            b = step.attention.workspace(Step::maxima);
            expect(a.bytes() == b.bytes(), "the same size");
          });
          expect(count(calls, "cuMemAlloc") == 2 && count(calls, "cuMemFree ") == 2,
                 "made twice and given back twice");
        }) == 0);
}

TEST_CASE("B182 a new workspace is an empty plan with empty slots, and is waited for",
          "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          const std::string calls = calls_of([&] { step.attention.workspace(Step::maxima); });
          expect(count(calls, "cuStreamSynchronize") == 1,
                 "the fills have run when it is handed out");
          expect(error_of([&] {
                   Workspace fresh = step.attention.workspace(Step::maxima);
                   step.attention.run(fresh, step.tensors);
                 }).what() == std::string("run() was called before plan() on this Workspace."),
                 "no run without a plan");
        }) == 0);
}

TEST_CASE("B124 the grid follows the device's own count of SMs", "[engine][cases]") {
  CHECK(with_step([](Engine& engine, Step& step) {
          expect(engine.device().num_sms == 132, "the mock's 132");
          const int ctas = step.attention.plan_config().of(Pipeline::decode).num_ctas;
          expect(ctas >= 132 && ctas % 132 == 0, "a multiple of 132, not " + std::to_string(ctas));
        }) == 0);
}

TEST_CASE("a forked child is told that it has no GPU engine, and the parent goes on",
          "[engine][cases]") {
  CHECK(with_step([](Engine&, Step& step) {
          step.plan();
          const int child = end_of(start_child([&] {
            const std::string said = error_of([&] { step.plan(); }).what();
            expect_in(said, "fork");
            return 0;
          }));
          expect(child == 0, "a sentence in the child");
          step.plan();
          step.run();
        }) == 0);
}
