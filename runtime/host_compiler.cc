#include "runtime/host_compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "runtime/files.h"

extern char** environ;

namespace heddle {

namespace fs = std::filesystem;

namespace {

// No -march=native: a home directory, and with it the cache, may be shared by unlike machines.
constexpr std::array kOptions = {"-std=c++20",     "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
                                 "-fno-math-errno"};

std::string on_path(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return access(name.c_str(), X_OK) == 0 ? name : std::string{};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (access(file.c_str(), X_OK) == 0 && fs::is_regular_file(file)) return file;
  }
  return {};
}

// The compiler to use, or an empty string with a sentence in `why`.
std::string find_compiler(std::string& why) {
  const char* wish = std::getenv("HEDDLE_CXX");
  if (wish != nullptr && wish[0] != '\0') {
    const std::string path = on_path(wish);
    if (path.empty()) {
      why = fmt::format("HEDDLE_CXX={} is no program that can be run; set it to a C++20 compiler.",
                        wish);
    }
    return path;
  }
  for (const char* name : {"c++", "g++", "clang++"}) {
    if (std::string path = on_path(name); !path.empty()) return path;
  }
  why =
      "No C++ compiler was found on PATH (c++, g++, clang++); install one, or set HEDDLE_CXX, to "
      "run variants on the CPU that are not built in.";
  return {};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, std::string_view text) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) {
    fail(ErrorKind::io, "{} cannot be written ({}); is the disk full?", path.string(),
         std::generic_category().message(errno));
  }
}

// Runs a program without a shell, its output into `log`; true where it exits with 0.
bool run_program(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> args;
  for (const std::string& word : words) args.push_back(const_cast<char*>(word.c_str()));
  args.push_back(nullptr);
  // English, without colours: the first error line is looked for by the word "error".
  static char locale[] = "LC_ALL=C", colours[] = "GCC_COLORS=", term[] = "TERM=dumb";
  std::vector<char*> env = {locale, colours, term};
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    if (entry.starts_with("LC_ALL=") || entry.starts_with("GCC_COLORS=") ||
        entry.starts_with("TERM="))
      continue;
    env.push_back(*at);
  }
  env.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child = 0;
  const int error = posix_spawn(&child, args[0], &files, nullptr, args.data(), env.data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return false;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    // A program that ignores SIGCHLD gets no status; then only the output tells.
    if (errno != EINTR) return true;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The folder's name differs in every run and means nothing to a reader.
std::string without(std::string text, const std::string& prefix) {
  for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at)) {
    text.erase(at, prefix.size());
  }
  return text;
}

void write_sources(const std::string& dir, const CompileRequest& request) {
  for (const SourceFile& file : request.headers) {
    const fs::path path(file.path);
    for (const fs::path& part : path) {
      if (path.is_absolute() || part == "..") {
        fail(ErrorKind::invalid_argument, "The header path {} of {} is not a plain relative path.",
             path.string(), request.name);
      }
    }
    write_file(dir / path, file.text);
  }
  write_file(dir + "/unit.cc", fmt::format("#line 1 \"{}\"\n{}", request.unit_path, request.unit));
}

}  // namespace

HostCompiler::HostCompiler(const std::string& path) : path_(path) {
  std::string why;
  if (path_.empty()) path_ = find_compiler(why);
  if (path_.empty()) throw Error(ErrorKind::unsupported, why);
  const TempDir dir;
  const std::string log = dir.path() + "/version";
  if (!run_program({path_, "--version"}, log) || !fs::exists(log)) {
    fail(ErrorKind::unsupported,
         "{} does not answer --version; set HEDDLE_CXX to a C++20 compiler.", path_);
  }
  identity_ = "host c++ " + read_file(log);
  for (const char* option : kOptions) identity_.append(" ").append(option);
}

std::optional<std::string> HostCompiler::unavailable() {
  std::string why;
  if (!find_compiler(why).empty()) return std::nullopt;
  return why;
}

const std::string& HostCompiler::identity() const { return identity_; }

Artifact HostCompiler::compile(const CompileRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  const TempDir dir;
  write_sources(dir.path(), request);
  const std::string log = dir.path() + "/log", image = dir.path() + "/unit.so";
  std::vector<std::string> words = {path_};
  words.insert(words.end(), kOptions.begin(), kOptions.end());
  words.insert(words.end(), {"-ffile-prefix-map=" + dir.path() + "/=", "-I" + dir.path(), "-o",
                             image, dir.path() + "/unit.cc"});
  const bool is_done = run_program(words, log);
  Artifact artifact;
  artifact.log = without(read_file(log), dir.path() + "/");
  if (!is_done || !fs::exists(image)) fail_compile(request, path_, artifact.log);
  artifact.image = read_file(image);
  if (artifact.image.find(request.entry) == std::string::npos) {
    fail_compile(request, path_,
                 fmt::format("error: the unit has no extern \"C\" function named {}\n{}",
                             request.entry, artifact.log));
  }
  artifact.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return artifact;
}

}  // namespace heddle
