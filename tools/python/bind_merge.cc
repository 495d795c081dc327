#include <nanobind/stl/string.h>

#include <vector>

#include "engine/error.h"
#include "tools/python/arguments.h"
#include "tools/python/bind.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

bool is_sequence(nb::handle object) {
  return nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object);
}

PartialState read_pair(nb::handle pair, std::size_t index, TensorReader& reader) {
  const std::string name = fmt::format("states[{}]", index);
  if (!is_sequence(pair) || nb::len(pair) != 2)
    fail(ErrorKind::invalid_argument, "{} is a {}; it must be a pair (o, lse).", name,
         nb::str(pair.type().attr("__name__")).c_str());
  return {reader.input(pair[0], name + ".o"), reader.input(pair[1], name + ".lse")};
}

// A list of pairs (o, lse), or one pair of arrays that hold all states.
std::vector<PartialState> read_states(nb::handle states, TensorReader& reader) {
  if (!is_sequence(states))
    fail(ErrorKind::invalid_argument,
         "states is a {}; give a list of pairs (o, lse), or one pair of arrays that hold all "
         "states.",
         nb::str(states.type().attr("__name__")).c_str());
  const std::size_t size = nb::len(states);
  if (size == 2 && !is_sequence(states[0]) && !is_sequence(states[1]))
    return unstack_states(reader.input(states[0], "o"), reader.input(states[1], "lse"));
  std::vector<PartialState> read;
  for (std::size_t i = 0; i < size; ++i) read.push_back(read_pair(states[i], i, reader));
  return read;
}

void run(const PyMergeStates& self, nb::handle states, nb::handle o, nb::handle lse,
         nb::handle stream_word) {
  const Stream stream = read_stream(stream_word, self.place);
  TensorReader reader(self.place, stream);
  const std::vector<PartialState> from = read_states(states, reader);
  PartialState result{.o = reader.output(o, "result.o")};
  if (!lse.is_none()) result.lse = reader.output(lse, "result.lse");
  if (self.place.on_gpu) return self.merge.run(from, result, stream);
  const nb::gil_scoped_release release;
  self.merge.run(from, result, stream);
}

}  // namespace

PyMergeStates make_merge_states(PyEngine& engine, int head_dim, nb::handle state_dtype,
                                nb::handle o_dtype) {
  const MergeConfig config{.head_dim = head_dim,
                           .state_dtype = read_state_dtype(state_dtype),
                           .o_dtype = read_state_dtype(o_dtype)};
  const nb::gil_scoped_release release;
  return {engine.engine.merge_states(config), engine.place};
}

void bind_merge(nb::module_& m) {
  nb::class_<PyMergeStates>(
      m, "MergeStates",
      "Merges partial states of attention, outputs o with their lse over disjoint sets of keys, "
      "exactly. Made by\n"
      "Engine.merge_states().\n\n"
      "M = max lse_s, w_s = exp(lse_s - M): o = sum(w_s o_s) / sum(w_s), lse = M + "
      "log(sum(w_s))\n\n"
      "A state with lse -inf (or +inf) is empty and weighs nothing, whatever its o holds; where all "
      "are, o = 0 and lse = -inf.")
      .def("run", &run, nb::arg("states"), nb::arg("o"), nb::arg("lse") = nb::none(), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "One launch, which a CUDA graph may capture: shapes, strides and the number of states "
           "are then fixed.\n\n"
           "states: 1 to 64 pairs (o, lse): o [num_rows, num_heads, head_dim] of state_dtype, lse "
           "[num_rows, num_heads]\n"
           "    float32, natural log; or one pair of arrays that hold all: o [n, num_rows, "
           "num_heads, head_dim], lse [n,\n"
           "    num_rows, num_heads]\n"
           "o: [num_rows, num_heads, head_dim] of o_dtype; written; may be a state's own, where "
           "dtypes and strides are equal\n"
           "lse: [num_rows, num_heads] float32; written; None if not wanted\n"
           "stream: as for Attention.plan()\n\n"
           "Raises InputError with the name of what does not fit: \"states[2].o\", \"result.lse\".")
      .def_prop_ro("head_dim",
                   [](const PyMergeStates& self) { return self.merge.config().head_dim; })
      .def_prop_ro("state_dtype",
                   [](const PyMergeStates& self) {
                     return std::string(name_of(self.merge.config().state_dtype));
                   })
      .def_prop_ro("o_dtype",
                   [](const PyMergeStates& self) {
                     return std::string(name_of(self.merge.config().o_dtype));
                   })
      .def_prop_ro("kernel", [](const PyMergeStates& self) { return self.merge.kernel(); })
      .def("__repr__", [](const PyMergeStates& self) {
        const MergeConfig& c = self.merge.config();
        return fmt::format("heddle.MergeStates(head_dim {}, {} to {})", c.head_dim,
                           name_of(c.state_dtype), name_of(c.o_dtype));
      });
}

}  // namespace heddle::python
