// Any text as a variant's spec: read, resolved, its mask bound, rendered for the host.
#include "engine/kernel_source.h"
#include "tests/fuzz.h"
#include "variants/variant.h"

using namespace heddle;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const VariantRegistry known;
  try {
    const Variant variant =
        Variant::from_json(heddle_tests::text_of(data, size), "fuzz.json", known);
    ParamValues given;
    for (const Param& param : variant.params)
      if (!param.has_default) given[param.name] = param.min.value_or(param.max.value_or(0));
    const std::vector<double> values = variant.resolve(given);
    heddle_tests::promise(values.size() == variant.params.size(), "every param has a value");
    const MaskBounds mask = variant.bounds(values);
    heddle_tests::promise(mask.window_left >= 0 && mask.window_right >= 0 && mask.sink >= 0,
                          "bounds are not negative");
    heddle_tests::promise(!render_host_unit(variant, values, "fuzz").text.empty(),
                          "a unit is rendered");
  } catch (const Error& error) {
    heddle_tests::check_sentence(error);
  }
  return 0;
}
