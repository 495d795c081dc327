// The driver's owners on a real GPU, where there is one with NVRTC beside it. In a child process:
// neither CUDA nor NVRTC's use of it may reach the other cases, which fork.
#include "runtime/driver.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

constexpr int kSkipped = 77;
constexpr int kCount = 1024;

Kernel adder(Module& module, const Device& device) {
  NvrtcCompiler compiler;
  CompileRequest request = request_of(
      "extern \"C\" __global__ void attention(int* o, int value) {\n"
      "  extern __shared__ int row[];\n"
      "  row[threadIdx.x] = value;\n"
      "  __syncthreads();\n"
      "  o[blockIdx.x * blockDim.x + threadIdx.x] += row[blockDim.x - 1 - threadIdx.x];\n}\n");
  request.arch = fmt::format("sm_{}{}", device.major(), device.minor());
  module = Module(compiler.compile(request).image);
  return module.kernel(request.entry);
}

bool all_are(const DeviceBuffer& buffer, int expected) {
  std::vector<int> host(kCount);
  copy_to_host(host.data(), buffer.data(), buffer.bytes());
  return std::count(host.begin(), host.end(), expected) == kCount;
}

int run_on_gpu() {
  if (Driver::get() == nullptr || NvrtcCompiler::unavailable()) return kSkipped;
  const Device device = Device::open();
  Module module;
  const Kernel kernel = adder(module, device);
  kernel.set_max_dynamic_smem(100 * 1024);
  if (kernel.registers() == 0 || kernel.max_active_blocks_per_sm(256, 100 * 1024) < 1) return 2;
  const StreamHandle stream = StreamHandle::create();
  const DeviceBuffer buffer(kCount * sizeof(int));
  fill32_async(buffer.data(), 5, kCount, stream.get());
  int value = 3;
  void* data = buffer.data();
  void* args[] = {&data, &value};
  const EventHandle begin = EventHandle::create(true), end = EventHandle::create(true);
  begin.record(stream.get());
  kernel.launch({kCount / 256}, {256}, 100 * 1024, stream.get(), args);
  kernel.launch({kCount / 256}, {256}, 1024, stream.get(), args);
  end.record(stream.get());
  stream.synchronize();
  if (!all_are(buffer, 11) || !end.reached() || elapsed_ms(begin, end) <= 0) return 3;

  Graph::begin_capture(stream.get());
  if (!is_capturing(stream.get())) return 4;
  kernel.launch({kCount / 256}, {256}, 1024, stream.get(), args);
  Module loaded_while_capturing;
  adder(loaded_while_capturing, device);
  const Graph graph = Graph::end_capture(stream.get());
  for (int i = 0; i < 10; ++i) graph.launch(stream.get());
  stream.synchronize();
  if (graph.num_nodes() != 1 || !all_are(buffer, 41)) return 5;

  try {
    Module("no cubin at all, only a text that the driver must refuse");
  } catch (const Error& error) {
    return Module::refused(error) ? 0 : 6;
  }
  return 7;
}

}  // namespace

TEST_CASE("driver: a real GPU loads, launches, captures and replays", "[driver][gpu]") {
  const int result = end_of(start_child(run_on_gpu));
  if (result == kSkipped) {
    WARN("skipped: no GPU, or no NVRTC");
    return;
  }
  CHECK(result == 0);
}
