// How long the axes of a variant's tensors are.
#include "tests/catch.h"
#include "variants/tensor_axis.h"
#include "variants/variant.h"

using namespace heddle;

namespace {

std::int64_t size_of(std::string_view text, const ShapeWords& words) {
  const std::optional<TensorAxis> axis = parse_axis(text);
  return axis ? axis_size(*axis, words, {}) : -2;
}

}  // namespace

TEST_CASE("an axis is a number, or a word times, over and plus one", "[variants]") {
  const ShapeWords words{.num_qo_heads = 12, .qo_len = 33, .kv_len = 1001};
  CHECK(size_of("16", words) == 16);
  CHECK(size_of("num_qo_heads", words) == 12);
  CHECK(size_of("kv_len / 8", words) == 126);
  CHECK(size_of("qo_len/32", words) == 2);
  CHECK(size_of(" 2 * kv_len + 1 ", words) == 2003);
  CHECK(size_of("3 * kv_len / 8 + 5", words) == 381);
  CHECK(size_of("num_requests / 8", words) == -1);  // not known here
  for (const char* wrong : {"", "0", "-1", "kv_len /", "kv_len / 0", "kv_len - 1", "2 kv_len", "1.5",
                            "kv_len * 2", "8 / kv_len", "2147483648", "kv_len, 2", "1 + kv_len"})
    CHECK(size_of(wrong, words) == -2);
}

TEST_CASE("an axis that names a param follows it through a composition", "[variants]") {
  VariantRegistry registry;
  const auto add = [&](const char* text) {
    registry.add(Variant::from_json(text, "a.json", registry));
  };
  add(R"({"name": "near", "params": {"far": {"type": "i32", "default": 3, "min": 1}},
          "tensors": {"bias": {"dtype": "f32", "shape": ["num_qo_heads", "2 * far + 1"]}}})");
  add(R"({"name": "wide", "params": {"far": {"type": "i32", "default": 10, "min": 1}},
          "tensors": {"table": {"dtype": "i32", "shape": ["far"]}}})");
  add(R"({"name": "both", "compose": ["sliding_window", "wide", "near"]})");
  const Variant& both = registry.at("both");
  const std::vector<double> values = both.resolve({{"near.far", 7}});
  REQUIRE(both.tensors.size() == 2);
  CHECK(axis_size(both.tensors[0].shape[0], {}, values) == 10);
  CHECK(axis_size(both.tensors[1].shape[1], {}, values) == 15);
}
