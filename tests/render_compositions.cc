// Build step: the host units of the random compositions. Usage: render_compositions OUT.cc
#include <fstream>

#include "tests/compositions.h"
#include "tools/unit_table.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ofstream out(argv[1]);
  heddle::VariantRegistry registry;
  heddle_tests::add_compositions(registry);
  std::vector<const heddle::Variant*> variants;
  for (int i = 0; i < heddle_tests::kCompositions; ++i)
    variants.push_back(&registry.at(heddle_tests::composition_name(i)));
  heddle::tools::write_unit_table(out, "composed_units", variants);
  return out ? 0 : 1;
}
