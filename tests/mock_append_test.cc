// append_kv and merge_states against the mock driver: what is compiled, what is launched, in which order
// of streams, and what it costs the host.
#include "engine/merge_states.h"
#include "runtime/driver.h"
#include "tests/mock_engine.h"
#include "tools/lengths_only.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

AttentionConfig config_with(AppendKv mode, const std::string& variant = "rope") {
  return {.variant = variant, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = 1, .append_kv = mode};
}

// Requests of 16 keys, one of them new; tensors that no kernel will ever read.
struct MockAppend {
  MockAppend(Engine& engine, AppendKv mode, int requests = 1)
      : lengths(std::vector<std::int32_t>(requests, 1), std::vector<std::int32_t>(requests, 16), 16),
        attention(engine.attention(config_with(mode))),
        workspace(attention.workspace({.max_requests = requests, .max_qo_rows = requests, .max_kv_tokens = 16 * requests, .max_qo_len = 1})) {
    tensors.new_k = tensors.new_v = {memory, DType::bf16, 3, {requests, 2, 64}, {128, 64, 1}};
    tensors.k = tensors.v = {pages, DType::bf16, 4, {1, 16, 2, 64}, {2048, 128, 64, 1}};
    tensors.kv_indices = reinterpret_cast<const std::int32_t*>(pages);
    run_tensors.q = run_tensors.o = {memory, DType::bf16, 3, {requests, 4, 64}, {256, 64, 1}};
    run_tensors.k = run_tensors.v = tensors.k;
    run_tensors.kv_indices = tensors.kv_indices;
  }
  void plan(Stream stream) { attention.plan(lengths.batch(), workspace, stream); }
  void append(Stream stream) { attention.append_kv(workspace, tensors, {}, stream); }
  void run(Stream stream) { attention.run(workspace, run_tensors, {}, stream); }

  // Addresses alone.
  void* const pages = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  void* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << 30);
  tools::LengthsOnly lengths;
  Attention attention;
  Workspace workspace;
  AppendTensors tensors;
  Tensors run_tensors;
};

std::string kernels_of(const Attention& attention) {
  std::string names;
  for (const KernelInfo& kernel : attention.kernels()) names += kernel.kernel + ' ';
  return names;
}

// Grid, block, shared memory and number of attributes (1: PDL) of what `call` launches.
std::string launch_of(const std::function<void()>& call) {
  const std::size_t before = std::string(mock_calls()).size();
  call();
  const std::string all = std::string(mock_calls()).substr(before), name = "cuLaunchKernelEx(";
  const std::size_t at = all.find(name);
  if (at == std::string::npos) return "none";
  const std::string text = all.substr(at + name.size());
  return text.substr(0, text.find(" attributes"));
}

void expect_is(const std::string& found, const std::string& wanted) { expect(found == wanted, wanted + ", not " + found); }

}  // namespace

TEST_CASE("append_kv's kernel is compiled where it is asked for, and one copy serves all variants", "[engine][append_kv]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          expect_is(kernels_of(engine.attention(config_with(AppendKv::none))), "decode ");
          const Attention rope = engine.attention(config_with(AppendKv::copy));
          expect_is(kernels_of(rope), "decode append_kv ");
          const Attention causal = engine.attention(config_with(AppendKv::copy, "causal"));
          expect_is(causal.kernels()[1].origin, "memory");
          const Attention turning = engine.attention(config_with(AppendKv::transform));
          expect_is(kernels_of(turning), "decode append_kv ");
          expect(turning.kernels()[0].origin != "memory", "another decode kernel, which leaves keys as they are");
        }) == 0);
}

TEST_CASE("keys that append finds transformed take a launch in front of both pipelines, where there is room for them",
          "[engine][transformed_keys]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          const auto made = [&](const std::string& variant, int max_qo_len, AppendKv mode) {
            AttentionConfig config = config_with(mode, variant);
            config.max_qo_len = max_qo_len;
            return engine.attention(config);
          };
          expect_is(kernels_of(made("rope", 0, AppendKv::none)), "decode append transformed_keys ");
          expect_is(kernels_of(made("rope", 32, AppendKv::none)), "decode append ");  // one query tile
          expect_is(kernels_of(made("causal", 0, AppendKv::none)), "decode append ");
          expect_is(kernels_of(made("rope", 0, AppendKv::transform)), "decode append append_kv ");
          MockAppend step(engine, AppendKv::none);
          step.attention = made("rope", 0, AppendKv::none);
          Maxima maxima{.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16};
          for (const auto& [room, launches] : {std::pair{-1, 3}, std::pair{8, 3}, std::pair{0, 2}}) {
            maxima.max_transformed_keys = room;
            step.workspace = step.attention.workspace(maxima);
            expect(step.workspace.bytes() == step.attention.workspace_bytes(maxima), "a size that is known beforehand");
            step.plan(nullptr);
            std::string wanted;
            for (int i = 0; i < launches; ++i) wanted += "cuLaunchKernelEx ";
            expect_is(mock_calls_of([&] { step.run(nullptr); }), wanted);
          }
        }) == 0);
}

TEST_CASE("transformed keys come to the copy engine row by row, whole tiles at a time, whatever the pages are",
          "[engine][transformed_keys]") {
  CHECK(with_mock_engine("maps", [](Engine& engine) {
          MockAppend step(engine, AppendKv::none);
          AttentionConfig config = config_with(AppendKv::none, "rope");
          config.max_qo_len = 0;
          step.attention = engine.attention(config);
          const auto maps_of = [](const std::function<void()>& call) {
            const std::size_t before = std::string(mock_calls()).size();
            call();
            const std::string all = std::string(mock_calls()).substr(before), name = "cuTensorMapEncodeTiled(";
            std::string maps;
            for (std::size_t at = all.find(name); at != std::string::npos; at = all.find(name, at + 1))
              maps += all.substr(at + name.size(), all.find(')', at) - at - name.size()) + ' ';
            return maps;
          };
          // bf16, 3 axes: 64 columns, 2 heads, 16 rows; boxes of the columns of one head for the 128 keys of a tile.
          const std::string transformed = "9,3,64,2,16;128,256;64,1,128;3 ";
          std::string maps = maps_of([&] {
            step.workspace = step.attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16});
            step.plan(nullptr);
            step.run(nullptr);
          });
          expect(maps.find(transformed) != std::string::npos, transformed + "among " + maps);
          step.workspace = step.attention.workspace(
              {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16, .max_transformed_keys = 0});
          step.plan(nullptr);
          maps = maps_of([&] { step.run(nullptr); });
          expect(maps.find(transformed) == std::string::npos, "no such map among " + maps);
        }) == 0);
}

TEST_CASE("append_kv is one launch of a grid that the maxima fix", "[engine][append_kv]") {
  CHECK(with_mock_engine("figures", [](Engine& engine) {
          MockAppend few(engine, AppendKv::copy, 2), many(engine, AppendKv::transform, 40000);
          few.plan(nullptr);
          many.plan(nullptr);
          // 2 items and three more for each of the 395 borders of decode's CTAs; 128 threads, PDL.
          expect_is(launch_of([&] { few.append(nullptr); }), "1187 1 1,128,0,1");
          const std::string large = launch_of([&] { many.append(nullptr); });
          expect_is(large, "2112 1 1,128,0,1");  // 132 SMs, 16 CTAs each
          many.lengths = tools::LengthsOnly({1}, {16}, 16);  // a smaller batch
          many.plan(nullptr);
          expect_is(launch_of([&] { many.append(nullptr); }), large);
        }) == 0);
}

TEST_CASE("append_kv waits for the plan and run of another stream, and they for it", "[engine][append_kv][streams]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          MockAppend step(engine, AppendKv::copy);
          const StreamHandle a = StreamHandle::create(), b = StreamHandle::create();
          step.plan(a.get());
          expect_is(mock_calls_of([&] { step.append(a.get()); }), "cuLaunchKernelEx ");
          expect_is(mock_calls_of([&] { step.run(a.get()); }), "cuLaunchKernelEx ");
          expect_is(mock_calls_of([&] { step.append(b.get()); }), "cuEventRecord(1) cuStreamWaitEvent(2) cuLaunchKernelEx ");
          expect_is(mock_calls_of([&] { step.run(a.get()); }), "cuEventRecord(2) cuStreamWaitEvent(1) cuLaunchKernelEx ");
          expect_is(mock_calls_of([&] { step.append(b.get()); }), "cuEventRecord(1) cuStreamWaitEvent(2) cuLaunchKernelEx ");
          expect_is(mock_calls_of([&] { step.plan(a.get()); }), "cuEventRecord(2) cuStreamWaitEvent(1) copy_async cuEventRecord(1) ");
        }) == 0);
}

TEST_CASE("append_kv in a capture waits for nothing outside of it", "[engine][append_kv][streams]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          MockAppend step(engine, AppendKv::copy);
          const StreamHandle a = StreamHandle::create(), b = StreamHandle::create();
          step.plan(a.get());
          Graph::begin_capture(b.get());
          const std::string captured = mock_calls_of([&] { step.append(b.get()), step.run(b.get()); });
          const Graph graph = Graph::end_capture(b.get());
          expect_is(captured, "cuLaunchKernelEx cuLaunchKernelEx ");
        }) == 0);
}

TEST_CASE("append_kv refuses before it launches", "[engine][append_kv]") {
  CHECK(with_mock_engine("short", [](Engine& engine) {
          MockAppend step(engine, AppendKv::copy), none(engine, AppendKv::none);
          expect_in(error_of([&] { step.append(nullptr); }).what(), "before plan()");
          none.plan(nullptr);
          expect_in(error_of([&] { none.append(nullptr); }).what(), "made with append_kv = none");
          step.plan(nullptr);
          step.tensors.new_k.shape[0] = 0;
          const std::string calls = mock_calls_of([&] { expect_in(error_of([&] { step.append(nullptr); }).what(), "new_k"); });
          expect_is(calls, "");
        }) == 0);
}

TEST_CASE("merge_states is one launch, of no more CTAs than rows keep busy or the GPU holds", "[engine][merge_states]") {
  CHECK(with_mock_engine("figures", [](Engine& engine) {
          const MergeStates merge = engine.merge_states({.head_dim = 128});
          expect_is(merge.kernel().kernel, "merge_states");
          // Addresses alone: one of the states, one of the result.
          const auto state = [&](DType dtype, std::int64_t rows) {
            void* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << (dtype == DType::f32 ? 20 : 40));
            return PartialState{{memory, dtype, 3, {rows, 8, 128}, {1024, 128, 1}}, {memory, DType::f32, 2, {rows, 8}, {8, 1}}};
          };
          const auto launch = [&](std::int64_t rows) {
            return launch_of([&] { merge.run(std::vector(3, state(DType::f32, rows)), state(DType::bf16, rows)); });
          };
          expect_is(launch(4), "4 1 1,128,0,1");  // 32 rows of 16 lanes
          expect_is(launch(1 << 20), "2112 1 1,128,0,1");
          expect_is(launch(0), "none");
          expect_in(error_of([&] { merge.run({}, state(DType::bf16, 1)); }).what(), "0 states");
        }) == 0);
}
