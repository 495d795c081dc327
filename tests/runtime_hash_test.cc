#include "runtime/hash.h"

#include "runtime/compiler.h"
#include "tests/catch.h"

using namespace heddle;

TEST_CASE("hash: XXH3-128 has its published value of no bytes", "[hash]") {
  // xxhash: XXH3_128bits("", 0) = 99aa06d3014798d86001c324468d497f.
  CHECK(hex(hash_bytes("")) == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("hash: hex writes the high word first", "[hash]") {
  CHECK(hex({0x0123456789abcdefu, 0xfedcba9876543210u}) == "fedcba98765432100123456789abcdef");
}

TEST_CASE("hash: fields count with their lengths", "[hash]") {
  CHECK(hash_fields({"ab", "c"}) != hash_fields({"a", "bc"}));
  CHECK(hash_fields({"ab"}) != hash_fields({"ab", ""}));
  CHECK(hash_fields({"ab", "c"}) == hash_fields({"ab", "c"}));
}

TEST_CASE("hash: a key made on any machine stays what it was", "[hash]") {
  // A change here makes every stored kernel of every user a miss: only with a new format number.
  CHECK(hex(hash_fields({"heddle", "sm_90a"})) == "3bbd4d81cb32dfe06d520cd03a93eaf7");
}

TEST_CASE("hash: the digest of headers sees names, texts and order", "[hash]") {
  const SourceFile a[] = {{"a.h", "int a;"}, {"b.h", "int b;"}};
  const SourceFile renamed[] = {{"a.h", "int a;"}, {"c.h", "int b;"}};
  const SourceFile edited[] = {{"a.h", "int a;"}, {"b.h", "int b; "}};
  const SourceFile moved[] = {{"b.h", "int b;"}, {"a.h", "int a;"}};
  CHECK(digest_of(a) == digest_of(a));
  CHECK(digest_of(a) != digest_of(renamed));
  CHECK(digest_of(a) != digest_of(edited));
  CHECK(digest_of(a) != digest_of(moved));
  CHECK(digest_of({}).size() == 32);
}
