// Arguments on the CPU device: the whole table, and what has no path to choose.
#include "engine/merge_states.h"
#include "tests/arguments.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("arguments: each is honoured on a path, or refused there by its name", "[engine][arguments]") {
  Engine engine = cpu_engine();
  for (const ArgumentPath& path : argument_paths())
    for (const Argument& argument : arguments()) CHECK(wrong_answer(engine, argument, path) == "");
}

TEST_CASE("arguments: the CPU device has no streams and no ordinals", "[engine][arguments]") {
  Engine engine = cpu_engine();
  const auto some = reinterpret_cast<Stream>(std::uintptr_t{16});
  for (const ArgumentPath& path : argument_paths()) {
    ArgumentCall call(path.config);
    call.stream = some;
    CHECK(sentence_of([&] { call.make(engine); }) ==
          "plan() was given a stream, but this Engine runs on the CPU device, which has none.");
  }
  CHECK(sentence_of([&] { engine.merge_states({.head_dim = 64}).run({}, {}, some); }) ==
        "merge_states was given a stream, but this Engine runs on the CPU device, which has none.");
  CHECK(sentence_of([&] { Engine({.device = DeviceKind::cpu, .ordinal = 1}); }) ==
        "ordinal is 1, but the CPU device was asked for; it numbers GPUs.");
}
