// The verbs of the `heddle` command. Each takes the words after its name and returns the exit
// code: 0 done, 1 a check failed. Wrong use and bad input are thrown as Error, which main turns
// into one sentence on stderr and exit code 2.
#pragma once

#include <string>
#include <vector>

namespace heddle::tools {

using Arguments = std::vector<std::string>;

int demo(const Arguments& arguments);
int verify(const Arguments& arguments);
int variants(const Arguments& arguments);
int compile(const Arguments& arguments);
int plan(const Arguments& arguments);
int bench(const Arguments& arguments);
int cache(const Arguments& arguments);

}  // namespace heddle::tools
