// NVRTC without a GPU. Where there is no NVRTC only the sentences are checked.
#include "runtime/nvrtc.h"

#include <pthread.h>

#include "runtime/hash.h"
#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

bool has_nvrtc() {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN(*why);
    return false;
  }
  return true;
}

const SourceFile kHeaders[] = {
    {"templates/twice.h",
     "#pragma once\n__device__ inline float twice(float x) { return 2 * x; }\n"}};

CompileRequest kernel_request(std::string arch = "sm_90a") {
  CompileRequest request = request_of(R"(#include "templates/twice.h"
extern "C" __global__ void attention(float* o, const float* q) {
  __shared__ float row[64];
  row[threadIdx.x] = q[threadIdx.x];
  __syncthreads();
  o[threadIdx.x] = twice(row[63 - threadIdx.x]);
}
)");
  request.headers = kHeaders;
  request.headers_digest = digest_of(kHeaders);
  request.arch = std::move(arch);
  return request;
}

std::string message_of(Compiler& compiler, const CompileRequest& request, ErrorKind kind) {
  try {
    compiler.compile(request);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("it compiled");
  return {};
}

}  // namespace

TEST_CASE("nvrtc: a machine without it is told what to do", "[nvrtc]") {
  const Environment path("HEDDLE_NVRTC_PATH", "/no/such/folder");
  const auto why = NvrtcCompiler::unavailable();
  REQUIRE(why);
  CHECK_THAT(*why, contains("HEDDLE_NVRTC_PATH=/no/such/folder"));
  CHECK_THAT(*why, contains("nvidia-cuda-nvrtc"));
  try {
    NvrtcCompiler compiler;
    FAIL("it was found");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    CHECK(error.what() == *why);
  }
  const Environment empty("HEDDLE_NVRTC_PATH", "/proc/self/task");
  CHECK_THAT(NvrtcCompiler::unavailable().value_or(""), contains("no libnvrtc.so"));
}

TEST_CASE("nvrtc: a kernel becomes a cubin with its figures", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const Artifact artifact = compiler.compile(kernel_request(arch));
    CHECK(artifact.image.substr(1, 3) == "ELF");
    CHECK(artifact.registers > 0);
    CHECK(artifact.registers < 64);
    CHECK(artifact.shared_bytes == 256);
    CHECK(artifact.spill_bytes == 0);
    CHECK(artifact.compile_ms > 1);
    CHECK_THAT(artifact.log, contains("ptxas info"));
  }
}

TEST_CASE("nvrtc: spills and stack are read from ptxas", "[nvrtc]") {
  if (!has_nvrtc()) return;
  CompileRequest request = kernel_request();
  // More live values than 24 registers hold.
  request.unit =
      R"(extern "C" __global__ void __launch_bounds__(1024, 2) attention(float* o, const float* q) {
  float x[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i] = q[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) o[i * 1024 + threadIdx.x] = x[i] * x[95 - i];
})";
  const Artifact artifact = NvrtcCompiler().compile(request);
  CHECK(artifact.registers == 32);
  CHECK(artifact.spill_bytes > 0);
  CHECK(artifact.stack_bytes > 0);
}

TEST_CASE("nvrtc: a mistake is named at the spec's own file, hook and line", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  CompileRequest request = kernel_request();
  request.name = "decode of cap";
  request.unit =
      "__device__ float hook(float logit) {\n#line 1 \"cap.json:/hooks/logits_transform\"\n"
      "return logit * undeclared;\n#line 4 \"test.cu\"\n}\n" +
      request.unit;
  const std::string message = message_of(compiler, request, ErrorKind::compile_failed);
  CHECK(message.find(
            "cap.json:/hooks/logits_transform(1): error: identifier \"undeclared\" is undefined") ==
        0);
  CHECK_THAT(message, contains("decode of cap (test.cu, for sm_90a, with NVRTC"));
  CHECK_THAT(message, contains("1 error detected"));
  // The engine stays usable.
  CHECK(compiler.compile(kernel_request()).registers > 0);
}

TEST_CASE("nvrtc: a unit without its entry, and a missing header, are compile errors", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  CompileRequest request = kernel_request();
  request.entry = "no_such_kernel";
  CHECK_THAT(message_of(compiler, request, ErrorKind::compile_failed), contains("no_such_kernel"));
  request = kernel_request();
  request.headers = {};
  CHECK_THAT(message_of(compiler, request, ErrorKind::compile_failed),
             contains("templates/twice.h"));
}

TEST_CASE("nvrtc: a mistake that only ptxas finds comes first too", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  CompileRequest request = kernel_request();
  request.unit =
      "extern \"C\" __global__ void attention() { asm volatile(\"no.such.instruction;\"); }";
  const std::string message = message_of(compiler, request, ErrorKind::compile_failed);
  CHECK_THAT(message.substr(0, message.find('\n')), contains("ptxas") && contains("no"));
}

TEST_CASE("nvrtc: an unknown or malformed architecture is refused with the known ones", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  CHECK_THAT(message_of(compiler, kernel_request("sm_999"), ErrorKind::unsupported),
             contains("90"));
  for (const char* arch : {"cpu", "sm_", "compute_90", "sm_90 -restrict", "sm_90,-G"}) {
    CHECK_THAT(message_of(compiler, kernel_request(arch), ErrorKind::invalid_argument),
               contains("sm_90a"));
  }
  const std::vector<int>& known = compiler.supported();
  CHECK(std::find(known.begin(), known.end(), 90) != known.end());
}

TEST_CASE("nvrtc: the options are the fixed list, and the identity says which library", "[nvrtc]") {
  if (!has_nvrtc()) return;
  const NvrtcCompiler compiler;
  const std::string& identity = compiler.identity();
  CHECK_THAT(identity, contains("-std=c++20 --prec-div=false --minimal --no-cache --no-source-include "
                                "--modify-stack-limit=false --ptxas-options=-v"));
  for (const char* poison : {"restrict", "-G", "Ofast"})
    CHECK(identity.find(poison) == std::string::npos);
  CHECK(compiler.version() >= 12000);
  CHECK(identity.find("size") == std::string::npos);  // build ids were found
  CHECK(identity == NvrtcCompiler().identity());
  const Environment flags("NVRTC_APPEND_FLAGS", "-lineinfo");
  CHECK(identity != NvrtcCompiler().identity());
}

TEST_CASE("nvrtc: what was compiled before does not change a kernel", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  CompileRequest plain = kernel_request();
  // With aliasing pointers, the kernel that a leaked -restrict would miscompile.
  plain.unit = R"(extern "C" __global__ void attention(float* o, const float* q) {
  for (int i = 1; i < 32; ++i) o[i] = q[i - 1] + q[0]; })";
  const std::string before = compiler.compile(plain).image;
  CompileRequest other = kernel_request("sm_80");
  other.unit =
      R"(extern "C" __global__ void attention(float* __restrict__ o, const float* __restrict__ q) {
  o[threadIdx.x] = q[threadIdx.x]; })";
  compiler.compile(other);
  other.unit = "bad";
  CHECK_THROWS_AS(compiler.compile(other), Error);
  CHECK(compiler.compile(plain).image == before);
}

TEST_CASE("nvrtc: threads compile at once to the same bytes", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  const std::string expected = compiler.compile(kernel_request()).image;
  std::atomic<int> same = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { same += compiler.compile(kernel_request()).image == expected; });
  }
  threads.clear();
  CHECK(same == 4);
}

TEST_CASE("nvrtc: a thread with a small stack may ask", "[nvrtc]") {
  if (!has_nvrtc()) return;
  NvrtcCompiler compiler;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  pthread_t thread;
  const auto body = [](void* data) -> void* {
    static_cast<NvrtcCompiler*>(data)->compile(kernel_request());
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, body, &compiler) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_CASE("nvrtc: the folder or the file may be named", "[nvrtc]") {
  if (!has_nvrtc()) return;
  const std::string path = NvrtcCompiler().library_path();
  REQUIRE(path.front() == '/');
  {
    const Environment file("HEDDLE_NVRTC_PATH", path.c_str());
    CHECK(NvrtcCompiler().library_path() == path);
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  const Environment wish("HEDDLE_NVRTC_PATH", folder.c_str());
  CHECK(std::filesystem::path(NvrtcCompiler().library_path()).parent_path() == folder);
}

TEST_CASE("nvrtc: kernels go through the cache", "[nvrtc]") {
  if (!has_nvrtc()) return;
  const TempDir dir;
  NvrtcCompiler compiler;
  KernelCache first({.dir = dir.path()}), second({.dir = dir.path()});
  const auto made = first.get(compiler, kernel_request());
  const auto found = second.get(compiler, kernel_request());
  CHECK(found.origin == KernelCache::Origin::disk);
  CHECK(found.artifact->image == made.artifact->image);
  CHECK(found.artifact->registers == made.artifact->registers);
}
