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

// One m64nNk16 product. Operands: N / 2 accumulators, those of A, B's descriptor, `accumulate`, and the half that
// all descriptors share. `b_by_rows`: B's rows are summed over, not its columns.
std::string product(std::string_view name, bool a_in_registers, bool b_by_rows, DType dtype, int n) {
  const int sums = n / 2, a_operands = a_in_registers ? 4 : 1, b = sums + a_operands;
  const std::string a = a_in_registers
      ? "{" + list_of(4, [&](int i) { return fmt::format("%{}", sums + i); }) + "}" : "da";
  const std::string a_inputs = a_in_registers
      ? list_of(4, [](int i) { return fmt::format("\"r\"(a[{}])", i); }) : "\"r\"(a)";
  const std::string a_descriptor = a_in_registers ? "" : fmt::format("mov.b64 da, {{%{}, %{}}};\\n", sums, b + 2);
  return fmt::format(
      "  static HEDDLE_DEVICE void {}(float (&d)[{}][4], {}, uint32_t b, int accumulate) {{\n"
      "    asm volatile(\"{{\\n.reg .pred p;\\n.reg .b64 da, db;\\nsetp.ne.b32 p, %{}, 0;\\n\"\n"
      "        \"{}mov.b64 db, {{%{}, %{}}};\\n\"\n"
      "        \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} \"\n"
      "        \"{{{}}}, {}, db, p, 1, 1, {}{};\\n}}\"\n"
      "        : {}\n"
      "        : {}, \"r\"(b), \"r\"(accumulate), \"n\"(WgmmaTile<16, kHeadDim, kBlockColumns>::kDescriptorHigh));\n"
      "  }}\n",
      name, n / 8, a_in_registers ? "const uint32_t (&a)[4]" : "uint32_t a", b + 1, a_descriptor, b, b + 2, n,
      name_of(dtype), name_of(dtype), list_of(sums, [](int i) { return fmt::format("%{}", i); }), a,
      a_in_registers ? "" : "0, ", int{b_by_rows},
      list_of(sums, [](int i) { return fmt::format("\"+f\"(d[{}][{}])", i / 4, i % 4); }), a_inputs);
}

}  // namespace

std::string render_wgmma(DType dtype, int tile_kv, int columns) {
  return product("multiply_keys", false, false, dtype, tile_kv) + product("multiply_keys", true, false, dtype, tile_kv) +
         product("multiply_values", true, true, dtype, columns);
}

}  // namespace heddle
