#include "engine/wgmma_source.h"

#include <string_view>

#include <fmt/format.h>

namespace heddle {
namespace {

// "%0, %1, ..." or any other list of `count`.
template <class Item>
std::string list_of(int count, const Item& item) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + item(i);
  return text;
}

// One m64nNk16 product. Operands: N / 2 accumulators, those of A, B's descriptor, `accumulate`.
std::string product(std::string_view name, std::string_view a_type, bool a_in_registers, DType dtype, int n) {
  const int sums = n / 2, a_operands = a_in_registers ? 4 : 1, b = sums + a_operands;
  const std::string a = a_in_registers
      ? "{" + list_of(4, [&](int i) { return fmt::format("%{}", sums + i); }) + "}" : fmt::format("%{}", sums);
  const std::string a_inputs = a_in_registers
      ? list_of(4, [](int i) { return fmt::format("\"r\"(a[{}])", i); }) : "\"l\"(a)";
  return fmt::format(
      "  static HEDDLE_DEVICE void {}(float (&d)[{}][4], {}, uint64_t b, int accumulate) {{\n"
      "    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{}, 0;\\n\"\n"
      "        \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} \"\n"
      "        \"{{{}}}, {}, %{}, p, 1, 1, {};\\n}}\"\n"
      "        : {}\n"
      "        : {}, \"l\"(b), \"r\"(accumulate));\n"
      "  }}\n",
      name, n / 8, a_type, b + 1, n, name_of(dtype), name_of(dtype),
      list_of(sums, [](int i) { return fmt::format("%{}", i); }), a, b, a_in_registers ? "1" : "0, 0",
      list_of(sums, [](int i) { return fmt::format("\"+f\"(d[{}][{}])", i / 4, i % 4); }), a_inputs);
}

}  // namespace

std::string render_wgmma(DType dtype, int tile_kv, int head_dim) {
  return product("multiply_keys", "uint64_t a", false, dtype, tile_kv) +
         product("multiply_values", "const uint32_t (&a)[4]", true, dtype, head_dim);
}

}  // namespace heddle
