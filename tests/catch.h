// Catch2 as systems ship it: version 2 (one header) on Debian 12 and Ubuntu 22.04, version 3 later.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace heddle_tests {
inline auto contains(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
}  // namespace heddle_tests
#else
#include <catch2/catch.hpp>
namespace heddle_tests {
inline auto contains(const std::string& text) { return Catch::Matchers::Contains(text); }
}  // namespace heddle_tests
#endif
