// How many times as long as in a release build a measured time may be. Runs that count lines or
// watch memory set HEDDLE_PATIENCE.
#pragma once

#include <cstdlib>

namespace heddle_tests {

inline int patience() {
  const char* wanted = std::getenv("HEDDLE_PATIENCE");
  return wanted != nullptr ? std::atoi(wanted) : 1;
}

}  // namespace heddle_tests
