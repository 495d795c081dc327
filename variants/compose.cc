#include "variants/compose.h"

#include <algorithm>
#include <utility>

#include "engine/error.h"
#include "variants/nearest.h"

namespace heddle {
namespace {

std::optional<bool> softmax_opinion(const Component& component) {
  if (component.use_softmax) return component.use_softmax;
  if (component.hooks.count(Hook::initial_state)) return true;
  return std::nullopt;
}

Variant own_part(Spec& spec) {
  Variant own;
  own.name = spec.name;
  Component component;
  component.name = spec.name;
  component.file = base_name(spec.file);
  component.hooks = std::move(spec.hooks);
  component.use_softmax = spec.use_softmax;
  for (const Param& param : spec.params) {
    component.params[param.name] = static_cast<int>(component.params.size());
  }
  for (const TensorParam& tensor : spec.tensors) {
    component.tensors[tensor.name] = static_cast<int>(component.tensors.size());
  }
  own.params = std::move(spec.params);
  own.tensors = std::move(spec.tensors);
  own.mask = std::move(spec.mask);
  own.components.push_back(std::move(component));
  return own;
}

void append_bounds(std::vector<Bound>& all, const std::vector<Bound>& bounds, int first_param) {
  for (Bound bound : bounds) {
    if (bound.param >= 0) bound.param += first_param;
    all.push_back(bound);
  }
}

void append(Variant& all, const Variant& part) {
  const int first_param = static_cast<int>(all.params.size());
  const int first_tensor = static_cast<int>(all.tensors.size());
  for (Component component : part.components) {
    for (auto& [name, index] : component.params) index += first_param;
    for (auto& [name, index] : component.tensors) index += first_tensor;
    all.components.push_back(std::move(component));
  }
  all.params.insert(all.params.end(), part.params.begin(), part.params.end());
  for (TensorParam tensor : part.tensors) {
    for (TensorAxis& axis : tensor.shape) {
      if (axis.param >= 0) axis.param += first_param;
    }
    all.tensors.push_back(std::move(tensor));
  }
  all.mask.causal = all.mask.causal || part.mask.causal;
  all.mask.rows_given = all.mask.rows_given || part.mask.rows_given;
  append_bounds(all.mask.window_left, part.mask.window_left, first_param);
  append_bounds(all.mask.window_right, part.mask.window_right, first_param);
  append_bounds(all.mask.sink, part.mask.sink, first_param);
}

// Gives every param (or tensor) its public name. `names` picks the map of a component.
template <typename Named>
void settle_names(std::string_view where, Variant& variant, std::vector<Named>& list,
                  std::map<std::string, int> Component::*names, std::string_view kind) {
  std::map<std::string, int> uses;
  for (const Component& component : variant.components) {
    for (const auto& [name, index] : component.*names) ++uses[name];
  }
  std::map<std::string, int> owners;
  for (const Component& component : variant.components) {
    for (const auto& [name, index] : component.*names) {
      std::string& shown = list[static_cast<std::size_t>(index)].name;
      shown = uses[name] > 1 ? component.name + "." + name : name;
      if (++owners[shown] > 1) {
        fail(ErrorKind::invalid_spec,
             "{}: the composition {} holds the component {} twice, so that its {} {} would have no "
             "name of its own; compose it once.",
             where, variant.name, component.name, kind, name);
      }
    }
  }
}

void check_sinks(std::string_view where, const std::vector<Variant>& parts) {
  const auto has_window = [](const Variant& part) {
    return !part.mask.window_left.empty() || !part.mask.window_right.empty();
  };
  for (const Variant& part : parts) {
    if (part.mask.sink.empty()) continue;
    for (const Variant& other : parts) {
      if (&other == &part || !has_window(other)) continue;  // a sink never stands without a window
      fail(
          ErrorKind::invalid_spec,
          "{}: {} declares a sink and {} declares {}, but the AND of two windows with sinks is not "
          "one window with sinks; declare the sink and every window in one part.",
          where, part.name, other.name, other.mask.sink.empty() ? "a window" : "a sink too");
    }
  }
}

// A row's range of keys has one begin. Where it leaves out some sink keys and keeps others, the row would see two
// ranges, neither from the first key on.
void check_given_rows(std::string_view where, const std::vector<Variant>& parts) {
  const auto find = [&parts](auto has) { return std::find_if(parts.begin(), parts.end(), has); };
  const auto given = find([](const Variant& part) { return part.mask.rows_given; });
  const auto sink = find([](const Variant& part) { return !part.mask.sink.empty(); });
  if (given == parts.end() || sink == parts.end()) return;
  fail(ErrorKind::invalid_spec,
       "{}: {} declares a sink and {} has the rows' ranges given, but the AND of a range with a window and its sinks "
       "is not one range of keys; leave one of the two out.",
       where, sink->name, given->name);
}

void settle_softmax(std::string_view where, Variant& variant) {
  const Component* first = nullptr;
  for (const Component& component : variant.components) {
    const std::optional<bool> opinion = softmax_opinion(component);
    if (!opinion) continue;
    if (first != nullptr && softmax_opinion(*first) != opinion) {
      const Component& with = *opinion ? component : *first;
      const Component& without = *opinion ? *first : component;
      fail(ErrorKind::invalid_spec,
           "{}: {} {}, but {} sets use_softmax to false; the parts of a variant must agree.", where,
           with.name,
           with.use_softmax ? "sets use_softmax to true"
                            : "has an initial_state, a term of the softmax",
           without.name);
    }
    first = &component;
    variant.use_softmax = *opinion;
  }
}

void check_initial_state(std::string_view where, const Variant& variant) {
  const Component* first = nullptr;
  for (const Component& component : variant.components) {
    if (!component.hooks.count(Hook::initial_state)) continue;
    if (first != nullptr) {
      fail(ErrorKind::invalid_spec,
           "{}: {} and {} both have an initial_state; a variant may have one.", where, first->name,
           component.name);
    }
    first = &component;
  }
}

std::string_view pair_word(RotaryPair pair) {
  return pair == RotaryPair::half_split ? "half_split" : "interleaved";
}

// One kind a chain: then x and its partner are all that the chain needs.
void check_pairs(std::string_view where, const Variant& variant, Hook hook) {
  const Component* first = nullptr;
  for (const Component& component : variant.components) {
    const auto at = component.hooks.find(hook);
    if (at == component.hooks.end() || at->second.pair == RotaryPair::none) continue;
    if (first != nullptr && first->hooks.at(hook).pair != at->second.pair) {
      fail(ErrorKind::invalid_spec,
           "{}: the {} of {} asks for the {} pair and that of {} for the {} pair; a chain may use "
           "one kind of pair.",
           where, name_of(hook), first->name, pair_word(first->hooks.at(hook).pair), component.name,
           pair_word(at->second.pair));
    }
    first = &component;
  }
}

// What is normed is the row as it lies in memory, so nothing may have changed it before.
void check_norms(std::string_view where, const Variant& variant, Hook hook) {
  const Component* first = nullptr;
  for (const Component& component : variant.components) {
    const auto at = component.hooks.find(hook);
    if (at == component.hooks.end()) continue;
    if (first != nullptr && !at->second.rms_norm.empty()) {
      fail(ErrorKind::invalid_spec,
           "{}: the {} of {} asks for rms_norm, but stands behind that of {}; compose {} first.",
           where, name_of(hook), component.name, first->name, component.name);
    }
    if (first == nullptr) first = &component;
  }
}

void check_size(std::string_view where, const Variant& variant) {
  if (variant.components.size() > kMaxComponents) {
    fail(ErrorKind::invalid_spec, "{}: {} is composed of {} parts; at most {} are allowed.", where,
         variant.name, variant.components.size(), kMaxComponents);
  }
  constexpr std::size_t kTensorBytes = 8 + 8 * std::size_t{kMaxTensorRank};
  const auto run_time =
      static_cast<std::size_t>(std::count_if(variant.params.begin(), variant.params.end(),
                                             [](const Param& param) { return !param.constant; }));
  const std::size_t bytes = variant.tensors.size() * kTensorBytes + run_time * 4;
  if (bytes > std::size_t{kMaxVariantArgBytes}) {
    fail(
        ErrorKind::invalid_spec,
        "{}: the arguments of {} take {} bytes ({} tensors of {}, {} run-time params of 4), but at "
        "most {} are allowed; make params constant or put them into a tensor.",
        where, variant.name, bytes, variant.tensors.size(), kTensorBytes, run_time,
        kMaxVariantArgBytes);
  }
}

// The first of a spec's parts that is itself among `waiting`; null if it waits for none of them.
const ComposedName* awaited_part(const Spec& spec, const std::vector<Spec>& waiting) {
  for (const ComposedName& part : spec.compose) {
    for (const Spec& other : waiting) {
      if (other.name == part.name && other.name != spec.name) return &part;
    }
  }
  return nullptr;
}

// Requires: every spec waits for another one.
[[noreturn]] void refuse_circle(const std::vector<Spec>& waiting) {
  const Spec* spec = &waiting[0];
  // As many steps as there are specs end inside the circle, wherever it was entered.
  for (std::size_t step = 0; step < waiting.size(); ++step) {
    const std::string& next = awaited_part(*spec, waiting)->name;
    spec = &*std::find_if(waiting.begin(), waiting.end(),
                          [&](const Spec& other) { return other.name == next; });
  }
  const ComposedName& part = *awaited_part(*spec, waiting);
  fail(ErrorKind::invalid_spec,
       "{} is {}, which leads back to {}; compositions may not form a circle.", part.where,
       in_quotes(part.name), spec->name);
}

}  // namespace

Variant compose(Spec spec, const VariantRegistry& known) {
  std::vector<Variant> parts;
  for (const ComposedName& part : spec.compose) {
    if (part.name == spec.name) {
      fail(ErrorKind::invalid_spec,
           "{} is {}, the spec itself; a variant cannot be a part of itself.", part.where,
           in_quotes(part.name));
    }
    const std::vector<std::string> names = known.names();
    if (!std::binary_search(names.begin(), names.end(), part.name)) {
      fail(ErrorKind::invalid_spec, "{} is {}, which is not a known variant; {}.", part.where,
           in_quotes(part.name), offer(part.name, names));
    }
    parts.push_back(known.at(part.name));
  }
  if (spec.has_own_part()) parts.push_back(own_part(spec));

  Variant out;
  out.name = std::move(spec.name);
  out.doc = std::move(spec.doc);
  out.file = std::move(spec.file);
  out.json = std::move(spec.json);
  for (const Variant& part : parts) append(out, part);
  settle_names(spec.where, out, out.params, &Component::params, "param");
  settle_names(spec.where, out, out.tensors, &Component::tensors, "tensor");
  check_size(spec.where, out);
  check_sinks(spec.where, parts);
  check_given_rows(spec.where, parts);
  check_initial_state(spec.where, out);
  settle_softmax(spec.where, out);
  for (const Hook hook : {Hook::query_transform, Hook::key_transform, Hook::value_transform}) {
    check_pairs(spec.where, out, hook);
    check_norms(spec.where, out, hook);
  }
  return out;
}

void add_specs(std::span<const EmbeddedFile> files, VariantRegistry& registry) {
  std::vector<Spec> waiting;
  for (const EmbeddedFile& file : files) waiting.push_back(read_spec(file.text, file.path));
  while (!waiting.empty()) {
    const auto ready = std::find_if(waiting.begin(), waiting.end(), [&](const Spec& spec) {
      return awaited_part(spec, waiting) == nullptr;
    });
    if (ready == waiting.end()) refuse_circle(waiting);
    Spec spec = std::move(*ready);
    waiting.erase(ready);
    registry.add(compose(std::move(spec), registry));
  }
}

}  // namespace heddle
