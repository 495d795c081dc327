// Build step: renders every built-in variant's host unit into one C++ file, with a table by which
// the engine finds them. Usage: render_builtin OUT.cc
#include <fstream>

#include "tools/unit_table.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ofstream out(argv[1]);
  const heddle::VariantRegistry registry;
  std::vector<const heddle::Variant*> variants;
  for (const std::string& name : registry.names()) variants.push_back(&registry.at(name));
  heddle::tools::write_unit_table(out, "builtin_units", variants);
  return out ? 0 : 1;
}
