// merge_states on the CPU device against its formula in double precision, and what it refuses.
#include <cmath>
#include <limits>

#include "engine/merge_states.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/merge_case.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("merge_states: any number of states, dtypes and strides, empty states among them", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  for (int i = 0; i < 200; ++i) {
    tools::Random random(i);
    const MergeShape shape = random_merge(random);
    INFO("seed " << i << ": " << shape.describe());
    MergeCase data(engine, shape, i);
    engine.merge_states(shape.config).run(data.states(), data.result());
    REQUIRE(data.verdict() == "");
  }
}

TEST_CASE("merge_states: the verdict of the test sees a result that was not written", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  const MergeCase data(engine, {.config = {.head_dim = 64}, .num_states = 2, .num_rows = 3, .num_heads = 2}, 1);
  CHECK(data.verdict() != "");
}

TEST_CASE("merge_states: one state that is not empty comes back bit for bit", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  const float inf = std::numeric_limits<float>::infinity();
  alignas(16) float a[8] = {1.1f, -2.3f, 3.7e-30f, 4e30f, 0, 6, 7, 8}, b[8], c[8], o[8], lse_a = 3.3f, lse_b = -inf, lse_c = inf, lse = 0;
  std::fill(b, b + 8, std::nanf("")), std::fill(c, c + 8, inf);
  const auto state = [](float* o, float* lse) {
    return PartialState{tools::tensor_of(o, DType::f32, {1, 1, 8}), tools::tensor_of(lse, DType::f32, {1, 1})};
  };
  const MergeStates merge = engine.merge_states({.head_dim = 8, .o_dtype = DType::f32});
  merge.run(std::vector{state(b, &lse_b), state(a, &lse_a), state(c, &lse_c)}, state(o, &lse));
  CHECK(std::equal(a, a + 8, o));
  CHECK(lse == lse_a);
  merge.run(std::vector{state(b, &lse_b), state(c, &lse_c)}, state(o, &lse));
  CHECK(std::all_of(o, o + 8, [](float x) { return x == 0; }));
  CHECK(lse == -inf);
}

TEST_CASE("merge_states: the result may be one of the states", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  const MergeShape shape{.config = {.head_dim = 80, .o_dtype = DType::f32}, .num_states = 3, .num_rows = 9, .num_heads = 2};
  MergeCase apart(engine, shape, 4), in_place(engine, shape, 4);
  const MergeStates merge = engine.merge_states(shape.config);
  merge.run(apart.states(), apart.result());
  merge.run(in_place.states(), in_place.states()[1]);
  CHECK(in_place.read(in_place.states()[1]) == apart.read(apart.result()));
}

TEST_CASE("merge_states: rows merged in turns are the rows merged at once", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  const MergeShape shape{.config = {.head_dim = 64, .o_dtype = DType::f32}, .num_states = 7, .num_rows = 20, .num_heads = 3};
  MergeCase data(engine, shape, 4);
  const MergeStates merge = engine.merge_states(shape.config);
  const std::vector<PartialState> all = data.states();
  merge.run(std::span(all).first(4), data.result());
  merge.run(std::vector{data.result(), all[4], all[5], all[6]}, data.result());
  CHECK(data.verdict() == "");
}

TEST_CASE("merge_states: parts of a sequence merge into the whole", "[engine][merge_states]") {
  Engine engine = cpu_engine();
  Attention attention = engine.attention({.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .page_size = 0});
  Workspace workspace = attention.workspace({.max_requests = 1, .max_qo_rows = 5, .max_kv_tokens = 100});
  std::vector<std::uint16_t> q(5 * 4 * 64), k(100 * 2 * 64), v(k.size()), o(q.size());
  tools::NormalSource values(DType::bf16, 3);
  for (auto* all : {&q, &k, &v}) values.fill(all->data(), all->size());
  std::vector<std::uint16_t> parts(3 * q.size()), merged(q.size());
  std::vector<float> lse(5 * 4), part_lse(3 * lse.size()), merged_lse(lse.size());
  // Requests [begin, end) of the keys.
  const auto attend = [&](int begin, int end, std::uint16_t* to, float* to_lse) {
    const std::vector<std::int32_t> qo{0, 5}, kv{begin, end};
    const std::vector<std::int32_t> shifted{0, end - begin};
    attention.plan({qo, shifted}, workspace);
    attention.run(workspace, {.q = tools::tensor_of(q.data(), DType::bf16, {5, 4, 64}),
                              .k = tools::tensor_of(k.data() + begin * 128, DType::bf16, {end - begin, 2, 64}),
                              .v = tools::tensor_of(v.data() + begin * 128, DType::bf16, {end - begin, 2, 64}),
                              .o = tools::tensor_of(to, DType::bf16, {5, 4, 64}), .lse = tools::tensor_of(to_lse, DType::f32, {5, 4})});
  };
  attend(0, 100, o.data(), lse.data());
  const int borders[] = {0, 30, 30, 100};  // the middle part has no key
  for (int s = 0; s < 3; ++s) attend(borders[s], borders[s + 1], parts.data() + s * q.size(), part_lse.data() + s * lse.size());
  const std::vector<PartialState> states = unstack_states(tools::tensor_of(parts.data(), DType::bf16, {3, 5, 4, 64}),
                                                          tools::tensor_of(part_lse.data(), DType::f32, {3, 5, 4}));
  engine.merge_states({.head_dim = 64, .state_dtype = DType::bf16})
      .run(states, {tools::tensor_of(merged.data(), DType::bf16, {5, 4, 64}), tools::tensor_of(merged_lse.data(), DType::f32, {5, 4})});
  for (std::size_t i = 0; i < o.size(); ++i)
    REQUIRE(tools::bf16_to_float(merged[i]) == Approx(tools::bf16_to_float(o[i])).margin(0.01).epsilon(0.01));
  for (std::size_t i = 0; i < lse.size(); ++i) CHECK(merged_lse[i] == Approx(lse[i]).epsilon(1e-5));
}

TEST_CASE("merge_states: what cannot be merged is refused by name", "[engine][merge_states][bad_input]") {
  Engine engine = cpu_engine();
  const MergeShape shape{.config = {.head_dim = 64}, .num_states = 3, .num_rows = 5, .num_heads = 2};
  MergeCase data(engine, shape, 4);
  const MergeStates merge = engine.merge_states(shape.config);
  struct Mistake {
    void (*make)(std::vector<PartialState>&, PartialState&);
    const char* sentence;
  };
  const Mistake mistakes[] = {
      {[](auto& s, auto&) { s.clear(); }, "merge_states was given 0 states; it takes 1 to 64 (more: merge them in turns, in f32)."},
      {[](auto& s, auto&) { s.resize(65, s[0]); },
       "merge_states was given 65 states; it takes 1 to 64 (more: merge them in turns, in f32)."},
      {[](auto& s, auto&) { s[0].o.rank = 2; }, "Tensor states[0].o has 2 axes; it needs 3."},
      {[](auto& s, auto&) { s[2].o.data = nullptr; }, "Tensor states[2].o has no data."},
      {[](auto& s, auto&) { s[1].lse.data = nullptr; }, "Tensor states[1].lse has no data."},
      {[](auto& s, auto&) { s[1].o.dtype = DType::bf16; }, "Tensor states[1].o holds bf16; it needs f32."},
      {[](auto& s, auto&) { s[1].lse.dtype = DType::f16; }, "Tensor states[1].lse holds f16; it needs f32."},
      {[](auto& s, auto&) { s[1].o.shape[0] = 4; }, "Tensor states[1].o has rows = 4; it needs 5."},
      {[](auto& s, auto&) { s[2].lse.shape[1] = 3; }, "Tensor states[2].lse has num_heads = 3; it needs 2."},
      {[](auto& s, auto&) { s[0].o.shape[2] = 32; }, "Tensor states[0].o has head_dim = 32; it needs 64."},
      {[](auto& s, auto&) { s[0].o.strides[1] = 66; },
       "Tensor states[0].o has stride 66 on axis 1; strides must be multiples of 4 elements (16 bytes)."},
      {[](auto&, auto& r) { r.o = {}; }, "Tensor result.o has no data."},
      {[](auto&, auto& r) { r.o.shape[0] = 6; }, "Tensor result.o has rows = 6; it needs 5."},
      {[](auto&, auto& r) { r.o.strides[0] = 0; },
       "Tensor result.o has stride 0 on axis 0; the result is written there, so it must not be 0."},
      {[](auto&, auto& r) { r.lse.strides[0] = 0; },
       "Tensor result.lse has stride 0 on axis 0; the result is written there, so it must not be 0."},
      {[](auto& s, auto& r) { r.o.data = s[1].o.data; },
       "Tensor result.o starts where states[1].o does, with another dtype or other strides; in place they must be equal."},
      {[](auto& s, auto& r) { r.lse = s[2].lse, r.lse.strides[0] += 1; },
       "Tensor result.lse starts where states[2].lse does, with another dtype or other strides; in place they must be equal."},
      {[](auto&, auto& r) { r.lse.rank = 3; }, "Tensor result.lse has 3 axes; it needs 2."},
  };
  for (const Mistake& mistake : mistakes) {
    std::vector<PartialState> states = data.states();
    PartialState result = data.result();
    mistake.make(states, result);
    CHECK(sentence_of([&] { merge.run(states, result); }) == mistake.sentence);
  }
  PartialState without_lse = data.result();
  without_lse.lse = {};
  CHECK(sentence_of([&] { merge.run(data.states(), without_lse); }) == "accepted");
  merge.run(data.states(), data.result());
  CHECK(data.verdict() == "");
}

TEST_CASE("merge_states: configs and stacks that do not fit are refused", "[engine][merge_states][bad_input]") {
  Engine engine = cpu_engine();
  CHECK(sentence_of([&] { engine.merge_states({.head_dim = 0}); }) ==
        "head_dim 0 is not supported by merge_states; it must be a multiple of 8.");
  CHECK(sentence_of([&] { engine.merge_states({.head_dim = 68}); }) ==
        "head_dim 68 is not supported by merge_states; it must be a multiple of 8.");
  CHECK(sentence_of([&] { engine.merge_states({.head_dim = 64, .o_dtype = DType::u8}); }) ==
        "o_dtype u8 is not supported by merge_states; bf16, f16 and f32 are.");
  CHECK(sentence_of([&] { engine.merge_states({.head_dim = 64, .state_dtype = DType::i32}); }) ==
        "state_dtype i32 is not supported by merge_states; bf16, f16 and f32 are.");
  CHECK(sentence_of([&] { MergeStates().run({}, {}); }) == "The MergeStates is empty; make one with Engine::merge_states().");
  float data[64] = {};
  const Tensor o = tools::tensor_of(data, DType::f32, {2, 1, 1, 8}), lse = tools::tensor_of(data, DType::f32, {3, 1, 1});
  CHECK(sentence_of([&] { unstack_states(o, lse); }) ==
        "The stacked tensors hold 2 states in o and 3 in lse; they must hold the same number.");
  CHECK(sentence_of([&] { unstack_states(lse, lse); }) == "The stacked tensor o has 3 axes; it needs 4.");
  CHECK(sentence_of([&] { unstack_states(o, {}); }) == "The stacked tensor lse has no data.");
}
