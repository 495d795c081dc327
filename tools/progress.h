// One line on stderr that tells where a long job stands. Only on a terminal; silent elsewhere.
#pragma once

#include <string>

namespace heddle::tools {

class Progress {
 public:
  explicit Progress(int total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const std::string& what);  // the job now under way
  void clear();                        // takes the line away, so that stdout can print

 private:
  int total_, done_ = 0;
  bool shown_;
};

}  // namespace heddle::tools
