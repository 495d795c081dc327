#include "engine/error.h"
#include "planner/lengths.h"
#include "tests/catch.h"

using heddle::Error;
using heddle::parse_lengths;
using Lengths = std::vector<std::int32_t>;

namespace {
std::int64_t sum(const Lengths& lengths) {
  std::int64_t total = 0;
  for (const std::int32_t n : lengths) total += n;
  return total;
}
}  // namespace

TEST_CASE("lengths: lists and products", "[planner][lengths]") {
  CHECK(parse_lengths("[]").empty());
  CHECK(parse_lengths("[1, 2,3]") == Lengths{1, 2, 3});
  CHECK(parse_lengths("2x5") == Lengths{5, 5});
  CHECK(parse_lengths("1x9+2x5+1x0") == Lengths{9, 5, 5, 0});
  CHECK(parse_lengths("64x4096").size() == 64);
}

TEST_CASE("lengths: zipf falls to 64", "[planner][lengths]") {
  const Lengths lengths = parse_lengths("zipf:256:65536");
  CHECK(lengths.size() == 256);
  CHECK((lengths[0] == 65536 && lengths[2] == 21845 && lengths[255] == 256));
  CHECK(parse_lengths("zipf:3:150") == Lengths{150, 75, 64});
  CHECK(sum(lengths) == 401255);
}

TEST_CASE("lengths: uniform gives the numbers of Python's random.Random(7).randint", "[planner][lengths]") {
  const Lengths lengths = parse_lengths("uniform:64:256:16384");
  CHECK(Lengths(lengths.begin(), lengths.begin() + 6) == Lengths{5561, 15785, 2727, 6724, 10920, 1047});
  CHECK(lengths.size() == 64);
  CHECK(sum(lengths) == 445791);
  CHECK(parse_lengths("uniform:5:0:2147483647") == Lengths{1390851128, 647892279, 1695753998, 207388624, 311111475});
  CHECK(parse_lengths("uniform:3:9:9") == Lengths{9, 9, 9});
  // Past the generator's first 624 words.
  const Lengths many = parse_lengths("uniform:2000:3:5");
  CHECK(sum(many) == 7904);
  CHECK(sum(Lengths(many.end() - 100, many.end())) == 401);
}

TEST_CASE("lengths: mistakes are quoted", "[planner][lengths]") {
  struct {
    const char* rule;
    const char* message;
  } const mistakes[] = {
      {"", "The lengths '' are not of the form COUNTxLENGTH (2 parts, found 1); lengths are written as [1,2,3], 64x4096, "
           "1x131072+255x1024, zipf:256:65536 or uniform:64:256:16384."},
      {"64", "The lengths '64' are not of the form COUNTxLENGTH (2 parts, found 1); lengths are written as [1,2,3], 64x4096, "
             "1x131072+255x1024, zipf:256:65536 or uniform:64:256:16384."},
      {"zipf:3", "The lengths 'zipf:3' are not of the form zipf:N:MAX (3 parts, found 2); lengths are written as [1,2,3], 64x4096, "
                 "1x131072+255x1024, zipf:256:65536 or uniform:64:256:16384."},
      {"ax3", "The lengths 'ax3' have 'a' as a count; it must be a whole number from 0 to 16777216."},
      {"3x-1", "The lengths '3x-1' have '-1' as a length; it must be a whole number from 0 to 2147483647."},
      {"3x4.5", "The lengths '3x4.5' have '4.5' as a length; it must be a whole number from 0 to 2147483647."},
      {"[1,,2]", "The lengths '[1,,2]' have '' as a length; it must be a whole number from 0 to 2147483647."},
      {"1x99999999999", "The lengths '1x99999999999' have '99999999999' as a length; it must be a whole number from 0 to "
                        "2147483647."},
      {"uniform:4:9:3", "The lengths 'uniform:4:9:3' have '3' as HIGH; it must be a whole number from 9 to 2147483647."},
  };
  for (const auto& mistake : mistakes) {
    INFO(mistake.rule);
    CHECK_THROWS_WITH(parse_lengths(mistake.rule), mistake.message);
  }
}
