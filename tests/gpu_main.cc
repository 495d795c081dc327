// The runner of the [gpu] tests: where there is no GPU it says why and exits 77, which ctest
// shows as skipped (Catch2 2 has no SKIP of its own). Their names can be listed anywhere.
#define CATCH_CONFIG_RUNNER
#include "tests/catch.h"

#include <cstdio>
#include <cstring>

#include "engine/engine.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::strncmp(argv[1], "--list", 6) == 0) return Catch::Session().run(argc, argv);
  const heddle::Engine engine;
  if (engine.device().kind != heddle::DeviceKind::cuda) {
    std::printf("skipped: %s\n", engine.device().why_cpu.c_str());
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
