#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/error.h"
#include "tools/python/arguments.h"
#include "tools/python/bind.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

// plan() and run() of one Workspace in two threads at once would mix their plans.
class Busy {
 public:
  explicit Busy(PyWorkspace& workspace) : flag_(workspace.is_busy) {
    if (flag_.test_and_set(std::memory_order_acquire))
      fail(ErrorKind::invalid_argument,
           "The Workspace is being used by another thread; give each thread a Workspace of its "
           "own.");
  }
  ~Busy() { flag_.clear(std::memory_order_release); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic_flag& flag_;
};

PyWorkspace* workspace(const PyAttention& self, int max_requests, std::int64_t max_qo_rows,
                       std::int64_t max_kv_tokens, int max_qo_len, std::int64_t max_transformed_keys) {
  const nb::gil_scoped_release release;
  return new PyWorkspace{
      self.attention.workspace({max_requests, max_qo_rows, max_kv_tokens, max_qo_len, max_transformed_keys}), self.place};
}

PlanSummary plan(PyAttention& self, PyWorkspace& workspace, nb::handle qo_indptr,
                 nb::handle kv_indptr, nb::handle last_page_len, nb::handle kv_lens,
                 std::int64_t kv_table_stride, nb::handle kv_indices, nb::handle first_keys,
                 nb::handle end_keys, const std::optional<ParamValues>& params,
                 nb::handle stream_word, bool copy) {
  const Busy busy(workspace);
  const Stream stream = read_stream(stream_word, self.place);
  const HostInts qo(qo_indptr, "qo_indptr", stream, copy), kv(kv_indptr, "kv_indptr", stream, copy),
      last(last_page_len, "last_page_len", stream, copy), lens(kv_lens, "kv_lens", stream, copy),
      pages(kv_indices, "kv_indices", stream, copy), firsts(first_keys, "first_keys", stream, copy),
      ends(end_keys, "end_keys", stream, copy);
  const Batch batch{.qo_indptr = qo.values(),
                    .kv_indptr = kv.values(),
                    .last_page_len = last.values(),
                    .kv_table_stride = kv_table_stride,
                    .kv_lens = lens.values(),
                    .kv_indices = pages.values(),
                    .first_keys = firsts.values(),
                    .end_keys = ends.values()};
  workspace.kv_table_stride = kv_table_stride;
  const nb::gil_scoped_release release;
  return self.attention.plan(batch, workspace.workspace, stream, params ? *params : ParamValues());
}

// The core takes an address; whether all that the plan will read is there can be told here only.
const std::int32_t* read_kv_indices(nb::handle object, const PyWorkspace& workspace,
                                    TensorReader& reader) {
  if (object.is_none()) return nullptr;
  const Tensor t = reader.input(object, "kv_indices");
  if (t.dtype != DType::i32)
    fail(ErrorKind::invalid_argument, "kv_indices holds {}; page ids are int32.", name_of(t.dtype));
  if (t.rank < 1 || t.rank > 2)
    fail(ErrorKind::invalid_argument,
         "kv_indices has {} axes; it needs one, or two for a dense table.", t.rank);
  if (t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != 1)
    fail(ErrorKind::invalid_argument,
         "kv_indices has stride {} on its last axis; it must be contiguous there.",
         t.strides[t.rank - 1]);
  if (t.rank == 2 && t.shape[0] > 1 && t.strides[0] != workspace.kv_table_stride)
    fail(ErrorKind::invalid_argument,
         "kv_indices is a table whose rows are {} entries apart, but plan() was given "
         "kv_table_stride={}.",
         t.strides[0], workspace.kv_table_stride);
  const std::int64_t rows = t.rank == 2 ? t.shape[0] : 1, columns = t.shape[t.rank - 1];
  const std::int64_t reach = rows > 0 ? (rows - 1) * (t.rank == 2 ? t.strides[0] : 0) + columns : 0;
  if (reach < workspace.workspace.summary().num_indices)
    fail(ErrorKind::invalid_argument, "kv_indices has {} entries; the plan reads {}.", reach,
         workspace.workspace.summary().num_indices);
  return static_cast<const std::int32_t*>(t.data);
}

std::map<std::string, Tensor> read_own(const std::optional<nb::dict>& given,
                                       TensorReader& reader) {
  std::map<std::string, Tensor> own;
  if (given)
    for (const auto& [key, value] : *given) {
      const auto name = nb::cast<std::string>(key);
      own[name] = reader.input(value, name);
    }
  return own;
}

// A launch takes about as long as another thread would need to get the GIL and give it back.
template <class Call>
void launch(const Place& place, const Call& call) {
  if (place.on_gpu) return call();
  const nb::gil_scoped_release release;
  call();
}

void run(PyAttention& self, PyWorkspace& workspace, nb::handle q, nb::handle k, nb::handle v,
         nb::handle o, nb::handle kv_indices, nb::handle lse, const char* layout,
         const std::optional<ParamValues>& params, std::optional<nb::dict> variant_tensors,
         nb::handle stream_word) {
  const Busy busy(workspace);
  const Stream stream = read_stream(stream_word, self.place);
  TensorReader reader(self.place, stream);
  Tensors tensors{.q = reader.input(q, "q"),
                  .k = reader.input(k, "k"),
                  .v = reader.input(v, "v"),
                  .o = reader.output(o, "o"),
                  .layout = read_layout(layout)};
  if (!lse.is_none()) tensors.lse = reader.output(lse, "lse");
  tensors.kv_indices = read_kv_indices(kv_indices, workspace, reader);
  tensors.variant = read_own(variant_tensors, reader);
  launch(self.place, [&] {
    self.attention.run(workspace.workspace, tensors, params ? *params : ParamValues(), stream);
  });
}

void append_kv(PyAttention& self, PyWorkspace& workspace, nb::handle new_k, nb::handle new_v,
               nb::handle k, nb::handle v, nb::handle kv_indices, const char* layout,
               const std::optional<ParamValues>& params, std::optional<nb::dict> variant_tensors,
               nb::handle stream_word) {
  const Busy busy(workspace);
  const Stream stream = read_stream(stream_word, self.place);
  TensorReader reader(self.place, stream);
  AppendTensors tensors{.new_k = reader.input(new_k, "new_k"),
                        .new_v = reader.input(new_v, "new_v"),
                        .k = reader.output(k, "k"),
                        .v = reader.output(v, "v"),
                        .layout = read_layout(layout)};
  tensors.kv_indices = read_kv_indices(kv_indices, workspace, reader);
  tensors.variant = read_own(variant_tensors, reader);
  launch(self.place, [&] {
    self.attention.append_kv(workspace.workspace, tensors, params ? *params : ParamValues(),
                             stream);
  });
}

void bind_summary(nb::module_& m) {
  nb::class_<PlanSummary>(m, "PlanSummary", "What a plan came to. Pairs are (decode, append).")
      .def_ro("items", &PlanSummary::items, "Work items.")
      .def_ro("partials", &PlanSummary::partials, "Partial states that are written and joined.")
      .def_ro("joins", &PlanSummary::joins, "Query tiles whose keys were cut.")
      .def_ro("max_over_mean", &PlanSummary::max_over_mean,
              "Cost of the busiest CTA over the mean.")
      .def_ro("shared_prefixes", &PlanSummary::shared_prefixes,
              "Groups of requests whose common keys are read once.")
      .def_ro("shared_keys", &PlanSummary::shared_keys,
              "Keys that need not be read again: of every group, times its requests but one.")
      .def_ro("transformed_keys", &PlanSummary::transformed_keys,
              "Keys that key_transform changes ahead of append, once and not once a query tile.")
      .def_ro("num_qo_rows", &PlanSummary::num_qo_rows,
              "Rows that q, o and lse must have at least.")
      .def_ro("max_kv_len", &PlanSummary::max_kv_len, "Of one request.")
      .def_ro("num_kv_rows", &PlanSummary::num_kv_rows,
              "Ragged: rows that k and v must have at least.")
      .def_ro("num_indices", &PlanSummary::num_indices,
              "Paged: entries of kv_indices that are read.")
      .def_ro("copy_bytes", &PlanSummary::copy_bytes, "Bytes copied to the device.")
      .def("__repr__", [](const PlanSummary& s) {
        return fmt::format("PlanSummary({} rows, items {}+{}, partials {}+{})", s.num_qo_rows,
                           s.items[0], s.items[1], s.partials[0], s.partials[1]);
      });
}

void bind_workspace(nb::module_& m) {
  nb::class_<PyWorkspace>(
      m, "Workspace", "Device memory of fixed size and address: the plan and the partial states.")
      .def_prop_ro("bytes", [](const PyWorkspace& self) { return self.workspace.bytes(); })
      .def_prop_ro(
          "summary", [](const PyWorkspace& self) { return self.workspace.summary(); },
          "PlanSummary of the last plan().")
      .def("__repr__", [](const PyWorkspace& self) {
        return fmt::format("heddle.Workspace({} bytes)", self.workspace.bytes());
      });
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_summary(m);
  bind_workspace(m);
  nb::class_<PyAttention>(m, "Attention",
                          "A variant compiled for a model's shapes. Made by Engine.attention().")
      .def("workspace", &workspace, nb::kw_only(), nb::arg("max_requests"), nb::arg("max_qo_rows"),
           nb::arg("max_kv_tokens"), nb::arg("max_qo_len") = 0, nb::arg("max_transformed_keys") = -1,
           nb::rv_policy::take_ownership,
           "Allocates a Workspace in which every batch within these maxima can be planned.\n\n"
           "max_requests: requests of a batch.\n"
           "max_qo_rows: query rows of a whole batch.\n"
           "max_kv_tokens: keys of a whole batch.\n"
           "max_qo_len: query rows of one request; 0 is any up to max_qo_rows.\n"
           "max_transformed_keys: keys of a batch that the workspace has room for once key_transform has changed them, "
           "so that append does so once a run and not once a query tile; -1 is as many as 32 MiB hold.")
      .def(
          "workspace_bytes",
          [](const PyAttention& self, int max_requests, std::int64_t max_qo_rows,
             std::int64_t max_kv_tokens, int max_qo_len, std::int64_t max_transformed_keys) {
            return self.attention.workspace_bytes(
                {max_requests, max_qo_rows, max_kv_tokens, max_qo_len, max_transformed_keys});
          },
          nb::kw_only(), nb::arg("max_requests"), nb::arg("max_qo_rows"), nb::arg("max_kv_tokens"),
          nb::arg("max_qo_len") = 0, nb::arg("max_transformed_keys") = -1, "Bytes of such a Workspace, without making one.")
      .def("plan", &plan, nb::arg("workspace"), nb::arg("qo_indptr"),
           nb::arg("kv_indptr") = nb::none(), nb::arg("last_page_len") = nb::none(), nb::kw_only(),
           nb::arg("kv_lens") = nb::none(), nb::arg("kv_table_stride") = 0,
           nb::arg("kv_indices") = nb::none(), nb::arg("first_keys") = nb::none(),
           nb::arg("end_keys") = nb::none(), nb::arg("params") = nb::none(),
           nb::arg("stream") = nb::none(), nb::arg("copy") = false,
           "Once a step: turns lengths into a balanced work list and starts its copy to the "
           "device.\n\n"
           "Lists, NumPy arrays or CPU tensors of integers; an array on the GPU is refused unless "
           "copy=True, which\n"
           "waits for the stream.\n\n"
           "qo_indptr: [num_requests + 1]; request r has query rows qo_indptr[r] to qo_indptr[r + "
           "1].\n"
           "kv_indptr: [num_requests + 1]; paged: entries of kv_indices; ragged: rows of k and v.\n"
           "last_page_len: [num_requests]; keys in each request's last page, 0 where it has no "
           "page.\n"
           "kv_lens, kv_table_stride: [num_requests] keys, and entries between rows of a dense "
           "page table; instead of\n"
           "    kv_indptr and last_page_len.\n"
           "kv_indices: with share_prefixes: the page ids that run() will get, on the host; what "
           "neighbouring requests have\n"
           "    in common is then found and read once, where that is faster. None: nothing is "
           "shared.\n"
           "first_keys, end_keys: [num_qo_rows]; for a variant whose mask has \"rows\": \"given\", and "
           "no other: row i of q sees,\n"
           "    of its request's keys, first_keys[i] to end_keys[i] - 1, and of those what the rest of "
           "the mask leaves.\n"
           "params: run-time values of the variant's params; run() must get the same for those of "
           "a declared mask.\n"
           "stream: None (PyTorch's current stream, if it is imported), an integer or a stream "
           "object.\n\n"
           "Raises InputError for a batch that is not one or exceeds the workspace's maxima, and, "
           "where append_kv is asked\n"
           "for, for a request with fewer keys than query rows.")
      .def("run", &run, nb::arg("workspace"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("o"), nb::kw_only(), nb::arg("kv_indices") = nb::none(),
           nb::arg("lse") = nb::none(), nb::arg("layout") = "NHD", nb::arg("params") = nb::none(),
           nb::arg("tensors") = nb::none(), nb::arg("stream") = nb::none(),
           "Once a layer: launches the planned batch; may be captured into a CUDA graph.\n\n"
           "q: [num_qo_rows, num_qo_heads, head_dim]\n"
           "k, v: [num_pages, page_size, num_kv_heads, head_dim], with layout=\"HND\" [num_pages, "
           "num_kv_heads,\n"
           "    page_size, head_dim]; ragged: [num_kv_rows, num_kv_heads, head_dim]\n"
           "o: like q; written\n"
           "kv_indices: int32 page ids, [num_indices] or a dense table [num_requests, max_pages]\n"
           "lse: [num_qo_rows, num_qo_heads] float32, natural log; written; None if not wanted\n"
           "params: run-time values of the variant's params\n"
           "tensors: the variant's own tensors by name\n"
           "stream: as for plan()\n\n"
           "Arrays stay the caller's: keep them until the stream has passed this run. Raises "
           "InputError for an array whose\n"
           "dtype, shape, strides or device do not fit, before anything is launched.")
      .def("append_kv", &append_kv, nb::arg("workspace"), nb::arg("new_k"), nb::arg("new_v"),
           nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("kv_indices") = nb::none(),
           nb::arg("layout") = "NHD", nb::arg("params") = nb::none(),
           nb::arg("tensors") = nb::none(), nb::arg("stream") = nb::none(),
           "Once a layer, before its run(): stores the new K and V rows of the step planned last "
           "in their pages. One launch\n"
           "for all requests; may be captured into a CUDA graph, where it follows every later "
           "plan.\n\n"
           "A request's new rows are its last qo_len keys, positions kv_len - qo_len to kv_len - "
           "1: the lengths of plan()\n"
           "count them already.\n\n"
           "new_k, new_v: [num_qo_rows, num_kv_heads, head_dim], rows as in q; views of a fused "
           "QKV array will do\n"
           "k, v: where they go, as in run(); written, and only there\n"
           "kv_indices, layout, stream: as for run()\n"
           "params, tensors: with append_kv=\"transform\" as for run(), for the variant's "
           "key_transform and value_transform;\n"
           "    none with \"copy\"\n\n"
           "Raises InputError where the Attention was made with append_kv=\"none\", before "
           "plan(), and for arrays that do not\n"
           "fit or overlap.")
      .def_prop_ro("config", [](const PyAttention& self) { return self.attention.config(); })
      .def_prop_ro("variant", [](const PyAttention& self) { return self.attention.variant(); })
      .def_prop_ro("kernels", [](const PyAttention& self) { return self.attention.kernels(); })
      .def("__repr__", [](const PyAttention& self) {
        const AttentionConfig& c = self.attention.config();
        return fmt::format("heddle.Attention({}, heads {}/{}, head_dim {})", c.variant,
                           c.num_qo_heads, c.num_kv_heads, c.head_dim);
      });
}

}  // namespace heddle::python
