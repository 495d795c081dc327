// Lengths of the requests of a workload, written as one word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle {

// One of
//   [1,2,3]               these lengths
//   64x4096               64 requests of 4096; several joined by +: 1x131072+255x1024
//   zipf:256:65536        request i of 256 has max(64, 65536 / (i + 1))
//   uniform:64:256:16384  64 lengths from 256 to 16384, the same in every run: those of Python's
//                         random.Random(7).randint
// Anything else throws Error with a sentence that quotes the offending part.
std::vector<std::int32_t> parse_lengths(std::string_view rule);

}  // namespace heddle
