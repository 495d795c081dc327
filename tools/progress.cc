#include "tools/progress.h"

#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace heddle::tools {

Progress::Progress(int total) : total_(total), shown_(isatty(fileno(stderr)) != 0) {}

Progress::~Progress() { clear(); }

void Progress::step(const std::string& what) {
  ++done_;
  if (shown_) fmt::print(stderr, "\r\033[K[{}/{}] {}", done_, total_, what);
  if (shown_) std::fflush(stderr);
}

void Progress::clear() {
  if (shown_ && done_ > 0) fmt::print(stderr, "\r\033[K");
  if (shown_) std::fflush(stderr);
}

}  // namespace heddle::tools
