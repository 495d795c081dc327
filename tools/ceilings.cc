#include "tools/ceilings.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "runtime/driver.h"
#include "runtime/nvrtc.h"
#include "tools/gpu_timer.h"
#include "tools/matmul_ceiling.h"
#include "tools/random.h"
#include "tools/texts.h"

namespace heddle::tools {
namespace {

// Random bytes: zeros draw less power, and then the clocks are higher than real work would see.
DeviceBuffer random_buffer(std::size_t bytes) {
  std::vector<std::uint16_t> block(std::size_t{1} << 24);
  NormalSource(DType::bf16, 3).fill(block.data(), block.size());
  DeviceBuffer buffer(bytes);
  const std::size_t step = block.size() * 2;
  for (std::size_t at = 0; at < bytes; at += step) {
    copy_to_device(static_cast<std::byte*>(buffer.data()) + at, block.data(),
                   std::min(step, bytes - at));
  }
  return buffer;
}

// Bytes in the 128-bit loads of read_ceiling.cu that a launch really reads.
double bytes_read(bool apart, std::int64_t count, unsigned ctas, unsigned threads) {
  constexpr std::int64_t kUnroll = 8;
  const std::int64_t block = kUnroll * threads;
  const std::int64_t quads = apart ? count / ctas / block * block * ctas : count / block * block;
  return 16.0 * double(quads);
}

double best_read_tbps(const DeviceInfo& device) {
  const std::string unit(embedded_text("tools/read_ceiling.cu"));
  const DeviceBuffer data = random_buffer(std::size_t{4} << 30), sink(16);
  std::int64_t count = std::int64_t(data.bytes() / 16);
  void* data_pointer = data.data();
  void* sink_pointer = sink.data();
  void* arguments[] = {&data_pointer, &count, &sink_pointer};
  NvrtcCompiler compiler;
  double best = 0;
  for (const bool apart : {false, true}) {
    const std::string entry = apart ? "read_apart" : "read_together";
    const Artifact image = compiler.compile({.name = "the read ceiling",
                                             .unit = unit,
                                             .unit_path = "tools/read_ceiling.cu",
                                             .arch = device.arch,
                                             .entry = entry});
    const Module module(image.image);
    const Kernel kernel = module.kernel(entry);
    for (const unsigned threads : {256u, 512u, 1024u}) {
      for (const unsigned per_sm : {1u, 2u, 4u, 8u}) {
        if (threads * per_sm > 2048) continue;
        const unsigned ctas = unsigned(device.num_sms) * per_sm;
        const auto launch = [&](Stream stream) {
          kernel.launch({ctas}, {threads}, 0, stream, arguments);
        };
        const double us = graph_us({launch, launch}, 5);
        best = std::max(best, bytes_read(apart, count, ctas, threads) / us / 1e6);
      }
    }
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(const DeviceInfo& device) {
  Ceilings ceilings;
  try {
    ceilings.read_tbps = best_read_tbps(device);
  } catch (const Error& error) {
    ceilings.why_no_read = error.what();
  }
  try {
    ceilings.matmul_tflops = matmul_tflops();
  } catch (const Error& error) {
    ceilings.why_no_matmul = error.what();
  }
  return ceilings;
}

}  // namespace heddle::tools
