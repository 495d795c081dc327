// Drives a fuzz target where there is no libFuzzer: every file of the corpus, then mutations of
// them by a fixed seed.
//
//   fuzz_spec CORPUS [-runs=N] [-max_total_time=SECONDS] [-seed=N]
//
// An input that brings the target down is in the file named by HEDDLE_FUZZ_LAST, if it is set.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz.h"

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

void mutate_once(Random& random, const std::vector<std::string>& corpus, std::string& input) {
  const std::size_t at = below(random, input.size() + 1),
                    length = below(random, std::min<std::size_t>(input.size() - at, 16) + 1);
  const std::string& other = corpus[below(random, corpus.size())];
  const std::size_t from = below(random, other.size() + 1);
  switch (below(random, 7)) {
    case 0:
      input.insert(at, 1, char(random()));
      break;
    case 1:
      input.erase(at, length);
      break;
    case 2:
      if (at < input.size()) input[at] = char(input[at] ^ (1 << below(random, 8)));
      break;
    case 3:
      input.insert(at, input.substr(below(random, input.size() + 1), length));
      break;
    case 4:
      input.insert(at, other, from, below(random, 32));
      break;
    case 5:
      input = input.substr(0, at) + other.substr(from);
      break;
    default: {
      constexpr const char* kWords[] = {"-1", "0",  "4294967296",       "1e309", "{", "}",
                                        "\"", "\\", "\xff\xff\xff\x7f", "/*",    "\n"};
      input.insert(at, kWords[below(random, std::size(kWords))]);
    }
  }
}

std::vector<std::string> read_corpus(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& at : std::filesystem::directory_iterator(folder)) paths.push_back(at.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void run(const std::string& input) {
  static const char* last = std::getenv("HEDDLE_FUZZ_LAST");
  if (last) std::ofstream(last, std::ios::binary | std::ios::trunc) << input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    return std::fprintf(stderr, "%s CORPUS [-runs=N] [-max_total_time=SECONDS] [-seed=N]\n",
                        argv[0]),
           2;
  long runs = 100000, seconds = 3600, seed = 1;
  for (int i = 2; i < argc; ++i) {
    std::sscanf(argv[i], "-runs=%ld", &runs);
    std::sscanf(argv[i], "-max_total_time=%ld", &seconds);
    std::sscanf(argv[i], "-seed=%ld", &seed);
  }
  const std::vector<std::string> corpus = read_corpus(argv[1]);
  if (corpus.empty()) return std::fprintf(stderr, "%s holds no inputs\n", argv[1]), 2;
  for (const std::string& input : corpus) run(input);
  Random random(static_cast<std::uint64_t>(seed));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  long done = 0;
  for (; done < runs && std::chrono::steady_clock::now() < end; ++done) {
    std::string input = corpus[below(random, corpus.size())];
    for (std::size_t i = below(random, 6) + 1; i > 0; --i) mutate_once(random, corpus, input);
    run(input.substr(0, 4096));
  }
  std::fprintf(stderr, "%zu inputs of the corpus and %ld mutations: no fault\n", corpus.size(),
               done);
}
