#include "runtime/host_compiler.h"

#include "runtime/hash.h"
#include "runtime/host_module.h"
#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

bool has_compiler() {
  if (const auto why = HostCompiler::unavailable()) {
    WARN(*why);
    return false;
  }
  return true;
}

const SourceFile kHeaders[] = {
    {"templates/deep/thrice.h", "#pragma once\ninline int thrice(int x) { return 3 * x; }\n"}};

CompileRequest host_request(const std::string& body = "return thrice(x);") {
  CompileRequest request = request_of(
      "#include \"templates/deep/thrice.h\"\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) int attention(int x) {\n" +
      body + "\n}\n");
  request.unit_path = "softmax_cpu.cc";
  request.headers = kHeaders;
  request.headers_digest = digest_of(kHeaders);
  request.arch = "cpu";
  return request;
}

int call(const HostModule& module, int x) {
  return reinterpret_cast<int (*)(int)>(module.symbol("attention"))(x);
}

std::string message_of(Compiler& compiler, const CompileRequest& request) {
  try {
    compiler.compile(request);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::compile_failed);
    return error.what();
  }
  FAIL("it compiled");
  return {};
}

}  // namespace

TEST_CASE("host compiler: a unit becomes a module that runs", "[host]") {
  if (!has_compiler()) return;
  HostCompiler compiler;
  const Artifact artifact = compiler.compile(host_request());
  CHECK(artifact.compile_ms > 1);
  CHECK(artifact.registers == 0);
  HostModule module(artifact.image);
  CHECK(call(module, 14) == 42);
  HostModule moved = std::move(module);
  CHECK_FALSE(module);
  CHECK(call(moved, 1) == 3);
  CHECK_THROWS_AS(moved.symbol("absent"), Error);
}

TEST_CASE("host compiler: modules with unique symbols are not taken for one another", "[host]") {
  if (!has_compiler()) return;
  HostCompiler compiler;
  // A static of an inline function is a unique symbol: it keeps its library mapped after dlclose,
  // so that a reused path would give the old code again.
  for (int i = 1; i <= 4; ++i) {
    CompileRequest request = host_request(fmt::format("return {} * x + unique();", i));
    request.unit =
        "__attribute__((visibility(\"default\"))) inline int& unique() { static int value; "
        "return value; }\n" +
        request.unit;
    const HostModule module(compiler.compile(request).image);
    CHECK(call(module, 10) == 10 * i);
  }
}

TEST_CASE("host compiler: a mistake is named at the spec's own file, hook and line", "[host]") {
  if (!has_compiler()) return;
  HostCompiler compiler;
  const std::string message =
      message_of(compiler, host_request("#line 7 \"cap.json:/hooks/logits_transform\"\nreturn x * "
                                        "undeclared;\n#line 3 \"softmax_cpu.cc\""));
  CHECK(message.find("cap.json:/hooks/logits_transform:7:") == 0);
  CHECK_THAT(message.substr(0, message.find('\n')), contains("undeclared"));
  CHECK_THAT(message, contains("softmax_cpu.cc"));
  CHECK(message.find("/heddle-") == std::string::npos);  // no temporary folder
}

TEST_CASE("host compiler: errors outside hooks name the unit or the header", "[host]") {
  if (!has_compiler()) return;
  HostCompiler compiler;
  CHECK(message_of(compiler, host_request("return oops;")).find("softmax_cpu.cc:3:") == 0);
  CompileRequest request = host_request();
  const SourceFile broken[] = {{"templates/deep/thrice.h", "int thrice(int x) { return y; }\n"}};
  request.headers = broken;
  CHECK(message_of(compiler, request).find("templates/deep/thrice.h:1:") == 0);
  request = host_request();
  request.entry = "no_such_function";
  CHECK_THAT(message_of(compiler, request), contains("no_such_function"));
}

TEST_CASE("host compiler: header paths cannot leave the temporary folder", "[host]") {
  if (!has_compiler()) return;
  HostCompiler compiler;
  for (const char* path : {"../evil.h", "/tmp/evil.h", "a/../../evil.h"}) {
    const SourceFile evil[] = {{path, ""}};
    CompileRequest request = host_request();
    request.headers = evil;
    CHECK_THROWS_AS(compiler.compile(request), Error);
  }
}

TEST_CASE("host compiler: leaves no files behind", "[host]") {
  if (!has_compiler()) return;
  const TempDir root;
  const Environment tmp("TMPDIR", root.path().c_str());
  HostCompiler compiler;
  compiler.compile(host_request());
  CHECK_THROWS_AS(compiler.compile(host_request("bad")), Error);
  CHECK(std::filesystem::is_empty(root.path()));
}

TEST_CASE("host compiler: a missing or wrong one is a sentence", "[host]") {
  {
    const Environment cxx("HEDDLE_CXX", "/no/such/compiler");
    CHECK_THAT(HostCompiler::unavailable().value_or(""), contains("HEDDLE_CXX=/no/such/compiler"));
    CHECK_THROWS_AS(HostCompiler(), Error);
  }
  const Environment none("HEDDLE_CXX", nullptr);
  const Environment path("PATH", "/no/such/folder");
  CHECK_THAT(HostCompiler::unavailable().value_or(""), contains("No C++ compiler"));
  CHECK_THROWS_AS(HostCompiler("/bin/false"), Error);
}

TEST_CASE("host compiler: the identity has version and options", "[host]") {
  if (!has_compiler()) return;
  const HostCompiler compiler;
  CHECK_THAT(compiler.identity(),
             contains("-std=c++20 -O2 -fPIC -shared -fvisibility=hidden -fno-math-errno"));
  CHECK(compiler.identity().size() > 100);  // --version says more than a word
}

TEST_CASE("host module: junk is refused with a sentence", "[host]") {
  try {
    HostModule module("not a shared object");
    FAIL("it loaded");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::io);
    CHECK_THAT(error.what(), contains("cannot be loaded"));
  }
}
