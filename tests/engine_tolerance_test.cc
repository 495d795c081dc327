// By how much a right kernel may be off.
#include <cmath>

#include "engine/reference.h"
#include "tests/catch.h"

using namespace heddle;

TEST_CASE("the tolerance of an output does not hang on which side of a tie it was stored", "[engine][reference]") {
  // The steps of f16 here are 2^-9. Both sides are half a step from what a right kernel adds up.
  const ReferenceResult exact{.o = {-2.5014345}}, plain{.o = {-2.50098}};
  const double allowed = allowed_error(exact, plain, DType::f16);
  CHECK(allowed >= std::abs(-2.5019531 - exact.o[0]));
  CHECK(allowed >= std::abs(-2.5 - exact.o[0]));
  CHECK(allowed < 1.5 * 0x1p-9);
  CHECK(allowed_error({.o = {0, 0}}, {.o = {0, 0}}, DType::f16) == 0);
  CHECK(allowed_error({.o = {1.5}}, {.o = {1.5}}, DType::bf16) == 0x1p-8);
}
