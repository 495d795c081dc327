#include "runtime/nvrtc.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>

#include "runtime/nvrtc_library.h"

namespace heddle {

namespace {

// All of them, but for -arch. NOTE: NVRTC 13.0 leaks -restrict, -G and --Ofast-compile into later
// compiles of the process (measured), so none of those may ever stand here.
//   --minimal            3 ms less front end: no textures, no runtime types
//   --no-cache           its own cache would hide ptxas' figures on a hit
//   --no-source-include  a unit is not a file and has no folder to include from
//   --modify-stack-limit=false  it would call setrlimit for the whole process
// Divisions in 2 ulp: one that is rounded right has a slow path with a call, which made a unit with a division
// a logit the largest and slowest of all.
constexpr std::array kOptions = {"-std=c++20",
                                 "--prec-div=false",
                                 "--minimal",
                                 "--no-cache",
                                 "--no-source-include",
                                 "--modify-stack-limit=false",
                                 "--ptxas-options=-v"};

constexpr std::size_t kStackBytes = std::size_t{8} << 20;

// NVRTC recurses deeply (64 KiB of stack crash it), and the caller's thread may be a small one.
void run_on_large_stack(std::function<void()> work) {
  struct Job {
    std::function<void()> work;
    std::exception_ptr error;
  } job{std::move(work), nullptr};
  const auto body = [](void* data) -> void* {
    Job& job = *static_cast<Job*>(data);
    try {
      job.work();
    } catch (...) {
      job.error = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const int result = pthread_create(&thread, &attributes, body, &job);
  pthread_attr_destroy(&attributes);
  if (result != 0) {
    body(&job);  // no thread to be had: this stack must do
  } else {
    pthread_join(thread, nullptr);
  }
  if (job.error) std::rethrow_exception(job.error);
}

// The number in front of `unit`, summed over all lines: "24 bytes spill stores".
int figure(std::string_view log, std::string_view unit, bool take_largest = false) {
  int total = 0;
  for (std::size_t at = log.find(unit); at != std::string_view::npos; at = log.find(unit, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && log[begin - 1] >= '0' && log[begin - 1] <= '9') --begin;
    const int value = std::atoi(std::string(log.substr(begin, at - begin)).c_str());
    total = take_largest ? std::max(total, value) : total + value;
  }
  return total;
}

void read_ptxas_figures(Artifact& artifact) {
  const std::string_view log = artifact.log;
  artifact.registers = figure(log, " registers", true);
  artifact.shared_bytes = figure(log, " bytes smem", true);
  artifact.stack_bytes = figure(log, " bytes stack frame", true);
  artifact.spill_bytes = figure(log, " bytes spill stores") + figure(log, " bytes spill loads");
}

bool is_real_arch(std::string_view arch) {
  return arch.size() > 3 && arch.starts_with("sm_") &&
         arch.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz", 3) ==
             std::string_view::npos;
}

}  // namespace

NvrtcCompiler::NvrtcCompiler(std::span<const std::string> dirs) {
  std::string why;
  library_ = Library::open(dirs, why);
  if (library_ == nullptr) fail(ErrorKind::unsupported, "{}.", why);
  identity_ = fmt::format("nvrtc {}.{} {}", library_->major, library_->minor, library_->build);
  for (const char* option : kOptions) identity_.append(" ").append(option);
  if (const char* flags = std::getenv("NVRTC_APPEND_FLAGS")) {
    identity_.append(" NVRTC_APPEND_FLAGS=").append(flags);
  }
}

NvrtcCompiler::~NvrtcCompiler() = default;

std::optional<std::string> NvrtcCompiler::unavailable(std::span<const std::string> dirs) {
  std::string why;
  if (Library::open(dirs, why) != nullptr) return std::nullopt;
  return why + ".";
}

const std::string& NvrtcCompiler::identity() const { return identity_; }
int NvrtcCompiler::version() const { return library_->major * 1000 + library_->minor * 10; }
const std::string& NvrtcCompiler::library_path() const { return library_->path; }
const std::vector<int>& NvrtcCompiler::supported() const { return library_->archs; }

namespace {

// One nvrtcProgram and the texts it refers to.
template <typename Library>
class Program {
 public:
  Program(const Library& nvrtc, const CompileRequest& request) : nvrtc_(nvrtc), request_(request) {
    std::vector<std::string> texts;
    std::vector<const char*> text_pointers, names;
    std::vector<std::string> paths;
    for (const SourceFile& file : request.headers) {
      texts.emplace_back(file.text);
      paths.emplace_back(file.path);
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      text_pointers.push_back(texts[i].c_str());
      names.push_back(paths[i].c_str());
    }
    const nvrtcResult result =
        nvrtc_.CreateProgram(&program_, request.unit.c_str(), request.unit_path.c_str(),
                             static_cast<int>(texts.size()), text_pointers.data(), names.data());
    if (result != NVRTC_SUCCESS) fail_with(result, "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.DestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Artifact compile() {
    const std::string arch = "-arch=" + request_.arch;
    std::vector<const char*> options = {arch.c_str()};
    options.insert(options.end(), kOptions.begin(), kOptions.end());
    const nvrtcResult result =
        nvrtc_.CompileProgram(program_, static_cast<int>(options.size()), options.data());
    Artifact artifact;
    artifact.log = log();
    if (result == NVRTC_ERROR_COMPILATION) fail_compile(request_, compiler(), artifact.log);
    if (result == NVRTC_ERROR_INVALID_OPTION) fail_arch();
    if (result != NVRTC_SUCCESS) fail_with(result, "nvrtcCompileProgram");
    std::size_t size = 0;
    nvrtc_.GetCUBINSize(program_, &size);
    artifact.image.resize(size);
    if (size == 0 || nvrtc_.GetCUBIN(program_, artifact.image.data()) != NVRTC_SUCCESS) {
      fail_compile(request_, compiler(), "error: NVRTC made no cubin\n" + artifact.log);
    }
    if (artifact.image.find(request_.entry) == std::string::npos) {
      fail_compile(request_, compiler(),
                   fmt::format("error: the unit has no extern \"C\" kernel named {}\n{}",
                               request_.entry, artifact.log));
    }
    return artifact;
  }

 private:
  std::string compiler() const { return fmt::format("NVRTC {}.{}", nvrtc_.major, nvrtc_.minor); }

  std::string log() const {
    std::size_t size = 0;  // with the closing NUL
    nvrtc_.GetProgramLogSize(program_, &size);
    std::string text(size, '\0');
    if (size > 0) nvrtc_.GetProgramLog(program_, text.data());
    text.resize(size > 0 ? size - 1 : 0);
    return text;
  }

  [[noreturn]] void fail_arch() const {
    std::string known;
    for (int arch : nvrtc_.archs) known += fmt::format("{}{}", known.empty() ? "" : ", ", arch);
    fail(ErrorKind::unsupported, "{} cannot compile {} for {}; it knows the architectures {}.",
         compiler(), request_.name, request_.arch, known);
  }

  // Not the unit's fault: out of memory, missing builtins, internal errors.
  [[noreturn]] void fail_with(nvrtcResult result, const char* call) const {
    fail(ErrorKind::unsupported, "{} of {} ({}) failed with {} while compiling {} for {}. {}", call,
         compiler(), nvrtc_.path, nvrtc_.GetErrorString(result), request_.name, request_.arch,
         program_ != nullptr ? log() : std::string{});
  }

  const Library& nvrtc_;
  const CompileRequest& request_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

Artifact NvrtcCompiler::compile(const CompileRequest& request) {
  if (!is_real_arch(request.arch)) {
    fail(ErrorKind::invalid_argument,
         "The architecture \"{}\" of {} is not a GPU's; it is written like sm_80 or sm_90a.",
         request.arch, request.name);
  }
  const auto begin = std::chrono::steady_clock::now();
  Artifact artifact;
  run_on_large_stack([&] { artifact = Program(*library_, request).compile(); });
  read_ptxas_figures(artifact);
  artifact.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return artifact;
}

}  // namespace heddle
