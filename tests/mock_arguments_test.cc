// Arguments on the mock driver: the same table as on the CPU device, but for streams, which it has.
#include "runtime/driver.h"
#include "tests/arguments.h"
#include "tests/mock_engine.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("arguments: on the GPU's paths too each is honoured, or refused by its name", "[engine][arguments]") {
  CHECK(with_mock_engine("quiet", [](Engine& engine) {
          for (const ArgumentPath& path : argument_paths()) {
            if (!path.on_mock) continue;
            for (const Argument& argument : arguments()) {
              const std::string wrong = wrong_answer(engine, argument, path);
              expect(wrong.empty(), wrong);
            }
            ArgumentCall call(path.config);
            const Attention attention = engine.attention(path.config);  // makes the context current
            const StreamHandle stream = StreamHandle::create();
            call.stream = stream.get();
            call.make(engine);
          }
        }) == 0);
}
