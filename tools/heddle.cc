// The `heddle` command: a table of verbs, and the one place where an Error becomes a sentence on
// stderr. `heddle` alone lists the verbs; an unknown verb is answered with the nearest one.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/error.h"
#include "engine/types.h"
#include "tools/verbs.h"
#include "variants/nearest.h"

namespace heddle::tools {
namespace {

struct Verb {
  std::string name;
  const char* about;
  int (*run)(const Arguments&);
};

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      {"demo", "register a variant, plan and run a growing batch, replay one graph, check it all",
       demo},
      {"verify", "run one configuration against the double-precision reference", verify},
      {"variants", "list the variants, show one, or check a spec file", variants},
      {"compile", "compile a variant's kernels for a GPU architecture, without a GPU", compile},
      {"plan", "show how a batch is cut into work, draw it, explain one request", plan},
      {"bench", "time named workloads beside the machine's ceilings", bench},
      {"cache", "show, warm or clear the cache of compiled kernels", cache},
  };
  return table;
}

int list_verbs() {
  fmt::print("heddle {}: a just-in-time attention engine\n\nheddle VERB ...\n", kVersion);
  for (const Verb& verb : verbs()) fmt::print("  {:<9} {}\n", verb.name, verb.about);
  fmt::print("\n`heddle VERB --help` tells what a verb takes.\n");
  return 0;
}

int run(const Arguments& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    return list_verbs();
  }
  if (words[0] == "--version") {
    fmt::print("heddle {}\n", kVersion);
    return 0;
  }
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.name == words[0]) return verb.run({words.begin() + 1, words.end()});
    names.push_back(verb.name);
  }
  fail(ErrorKind::invalid_argument,
       "`{}` is not a verb of heddle; did you mean `{}`? The verbs are {}.", words[0],
       nearest(words[0], names), comma_list(names));
}

// A word of the command line may hold what steers a terminal; a sentence that quotes it must not.
std::string readable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool steers = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    out += steers ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out;
}

// NVRTC as set-up fetched it for this build, unless the user names another.
void point_at_fetched_nvrtc() {
  const std::string folder = HEDDLE_NVRTC_DIR;
  if (!folder.empty() && std::filesystem::exists(folder))
    setenv("HEDDLE_NVRTC_PATH", folder.c_str(), 0);
}

}  // namespace

int run_command(const Arguments& words) {
  point_at_fetched_nvrtc();
  try {
    return run(words);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "heddle: {}\n", readable(error.what()));
    return 2;
  }
}

}  // namespace heddle::tools

int main(int argc, char** argv) { return heddle::tools::run_command({argv + 1, argv + argc}); }
