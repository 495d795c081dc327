// Masks whose rows have their ranges given, on any device: every kind of range beside every mask, on every kernel. Shared
// by the CPU device's tests and the GPU's.
#pragma once

#include "tests/case_run.h"

namespace heddle_tests {

// Problems of `variant`, a composition with key_ranges: decode and append, short rows, one head a group, pages and
// ragged, cut streams, mma.sync alone. Each has requests of every kind of range: packed documents, a prefix, spans, any
// two ends, rows and whole requests that see nothing.
std::vector<ProblemShape> given_range_shapes(heddle::Engine& engine, const std::string& variant);

// What is wrong with NaN in all keys that no row of a request sees. Empty: nothing.
Found unseen_keys_matter(heddle::Engine& engine, const heddle::AttentionConfig& config);

inline constexpr const char* kGivenVariants[] = {"key_ranges", "causal+key_ranges", "sliding_window+key_ranges",
                                                 "soft_cap+key_ranges", "alibi+causal+key_ranges"};

}  // namespace heddle_tests
