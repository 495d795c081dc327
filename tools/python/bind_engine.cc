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

std::vector<std::string> nvrtc_folders() {
  return nb::cast<std::vector<std::string>>(
      nb::module_::import_("heddle._nvrtc").attr("folders")());
}

void init_engine(PyEngine* self, nb::handle device, bool disk_cache,
                 std::optional<std::string> cache_dir, bool check_pages) {
  EngineOptions options{.use_disk_cache = disk_cache,
                        .cache_dir = cache_dir.value_or(""),
                        .check_pages = check_pages,
                        .nvrtc_dirs = nvrtc_folders()};
  read_device(device, options);
  const nb::gil_scoped_release release;  // the driver takes its time to start
  Engine engine(options);
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  new (self) PyEngine{std::move(engine), {on_gpu, on_gpu ? options.ordinal : 0}};
}

void init_config(AttentionConfig* self, int num_qo_heads, int num_kv_heads, int head_dim,
                 std::optional<int> head_dim_vo, const std::string& variant, nb::handle q_dtype, nb::handle kv_dtype, int page_size,
                 std::optional<float> sm_scale, std::optional<int> max_qo_len, std::optional<int> max_requests, bool batch_invariant,
                 bool share_prefixes, const char* append_kv, bool portable,
                 std::optional<ParamValues> constants) {
  const DType dtype = read_dtype(q_dtype);
  new (self) AttentionConfig{.variant = variant,
                             .num_qo_heads = num_qo_heads,
                             .num_kv_heads = num_kv_heads,
                             .head_dim = head_dim,
                             .head_dim_vo = head_dim_vo.value_or(0),
                             .q_dtype = dtype,
                             .kv_dtype = kv_dtype.is_none() ? dtype : read_dtype(kv_dtype),
                             .page_size = page_size,
                             .sm_scale = sm_scale.value_or(0),
                             .max_qo_len = max_qo_len.value_or(0),
                             .max_requests = max_requests.value_or(0),
                             .batch_invariant = batch_invariant,
                             .share_prefixes = share_prefixes,
                             .append_kv = read_append_kv(append_kv),
                             .portable = portable,
                             .constants = constants.value_or(ParamValues())};
}

PyAttention make_attention(PyEngine& self, const AttentionConfig& config) {
  const nb::gil_scoped_release release;
  return {self.engine.attention(config), self.place};
}

// attention(config) or attention(num_qo_heads=..., ...): the words are AttentionConfig's.
PyAttention attention(PyEngine& self, nb::handle config, nb::kwargs words) {
  if (config.is_none())
    return make_attention(self, nb::cast<AttentionConfig>(nb::type<AttentionConfig>()(**words)));
  if (words.size() != 0)
    fail(ErrorKind::invalid_argument,
         "attention() got a config and {} words beside it; give one or the other.", words.size());
  return make_attention(self, nb::cast<AttentionConfig>(config));
}

void bind_records(nb::module_& m) {
  nb::class_<KernelInfo>(m, "KernelInfo", "One compiled kernel.")
      .def_ro("kernel", &KernelInfo::kernel,
              "\"decode\", \"append\", \"append_kv\" or \"merge_states\"; \"host\" on the CPU "
              "device.")
      .def_ro("arch", &KernelInfo::arch)
      .def_ro("compile_ms", &KernelInfo::compile_ms,
              "Of the compile that made it, whenever that was.")
      .def_ro("load_ms", &KernelInfo::load_ms, "From the request to a loaded kernel, this time.")
      .def_ro("registers", &KernelInfo::registers)
      .def_ro("shared_bytes", &KernelInfo::shared_bytes)
      .def_ro("spill_bytes", &KernelInfo::spill_bytes)
      .def_ro("origin", &KernelInfo::origin, "\"compiled\", \"disk\", \"memory\" or \"built in\".")
      .def("__repr__", [](const KernelInfo& k) {
        return fmt::format("KernelInfo({} for {}, {} in {:.1f} ms)", k.kernel, k.arch, k.origin,
                           k.load_ms);
      });
  nb::class_<DeviceInfo>(m, "DeviceInfo", "The device of an Engine.")
      .def_prop_ro("kind",
                   [](const DeviceInfo& d) { return d.kind == DeviceKind::cuda ? "cuda" : "cpu"; })
      .def_ro("name", &DeviceInfo::name)
      .def_ro("arch", &DeviceInfo::arch, "\"sm_90a\", or \"cpu\".")
      .def_ro("num_sms", &DeviceInfo::num_sms)
      .def_ro("why_cpu", &DeviceInfo::why_cpu, "Why there is no GPU; empty on one.")
      .def("__repr__", [](const DeviceInfo& d) {
        return fmt::format("DeviceInfo({}{})", d.name, d.why_cpu.empty() ? "" : ": " + d.why_cpu);
      });
}

void bind_config(nb::module_& m) {
  nb::class_<AttentionConfig>(m, "AttentionConfig",
                              "A model's attention, as fixed when it is made.")
      .def("__init__", &init_config, nb::kw_only(), nb::arg("num_qo_heads"),
           nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("head_dim_vo") = nb::none(),
           nb::arg("variant") = "softmax",
           nb::arg("q_dtype") = "bf16", nb::arg("kv_dtype") = nb::none(), nb::arg("page_size") = 16,
           nb::arg("sm_scale") = nb::none(), nb::arg("max_qo_len") = nb::none(), nb::arg("max_requests") = nb::none(),
           nb::arg("batch_invariant") = false, nb::arg("share_prefixes") = false,
           nb::arg("append_kv") = "none", nb::arg("portable") = false,
           nb::arg("constants") = nb::none(),
           "head_dim_vo: head_dim of v and o; None is that of q and k.\n"
           "variant: name of a registered variant.\n"
           "q_dtype, kv_dtype: of q and o, of k and v: \"bf16\" or \"f16\" (torch and NumPy dtypes "
           "too), equal.\n"
           "page_size: keys a page; 0 for ragged K/V.\n"
           "sm_scale: factor of the logits; None is 1 / sqrt(head_dim).\n"
           "max_qo_len: most query rows of one request; None is any. 1 leaves the append kernel "
           "out.\n"
           "max_requests: most requests of a batch; None is any. Few (times kv heads no more than the GPU has SMs) get a "
           "decode\n"
           "    tile of their own; a workspace for more is refused.\n"
           "batch_invariant: a request's bits do not depend on what else is in the batch.\n"
           "share_prefixes: plan() looks for prefixes that neighbouring requests share, in the page "
           "ids it is given, and has\n"
           "    their keys read once. Needs pages, at most 16 query heads to a kv head, and a variant "
           "without window, sinks\n"
           "    and positions; not with batch_invariant.\n"
           "append_kv: what append_kv() does with new K and V rows: \"none\" (it is refused), "
           "\"copy\" (stored as they are),\n"
           "    \"transform\" (stored as the variant's key_transform and value_transform leave "
           "them; run() then reads them as\n"
           "    they are). All Attentions over the same pages need the same, transform or not.\n"
           "portable: only kernels that every architecture has.\n"
           "constants: values of the variant's constant params.")
      .def_ro("variant", &AttentionConfig::variant)
      .def_ro("num_qo_heads", &AttentionConfig::num_qo_heads)
      .def_ro("num_kv_heads", &AttentionConfig::num_kv_heads)
      .def_ro("head_dim", &AttentionConfig::head_dim)
      .def_prop_ro("head_dim_vo", &AttentionConfig::vo_dim)
      .def_prop_ro("q_dtype",
                   [](const AttentionConfig& c) { return std::string(name_of(c.q_dtype)); })
      .def_prop_ro("kv_dtype",
                   [](const AttentionConfig& c) { return std::string(name_of(c.kv_dtype)); })
      .def_ro("page_size", &AttentionConfig::page_size)
      .def_ro("sm_scale", &AttentionConfig::sm_scale, "0 stands for 1 / sqrt(head_dim).")
      .def_ro("max_qo_len", &AttentionConfig::max_qo_len, "0 stands for any.")
      .def_ro("max_requests", &AttentionConfig::max_requests, "0 stands for any.")
      .def_ro("batch_invariant", &AttentionConfig::batch_invariant)
      .def_ro("share_prefixes", &AttentionConfig::share_prefixes)
      .def_prop_ro("append_kv",
                   [](const AttentionConfig& c) { return std::string(name_of(c.append_kv)); })
      .def_ro("portable", &AttentionConfig::portable)
      .def_ro("constants", &AttentionConfig::constants)
      .def("__repr__", [](const AttentionConfig& c) {
        return fmt::format("AttentionConfig({}, heads {}/{}, head_dim {}, {}, page_size {})",
                           c.variant, c.num_qo_heads, c.num_kv_heads, c.head_dim,
                           name_of(c.q_dtype), c.page_size);
      });
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_records(m);
  bind_config(m);
  nb::class_<PyEngine>(m, "Engine",
                       "One device, the variants it knows and the cache of compiled kernels.")
      .def("__init__", &init_engine, nb::arg("device") = "auto", nb::kw_only(),
           nb::arg("disk_cache") = true, nb::arg("cache_dir") = nb::none(),
           nb::arg("check_pages") = false,
           "device: \"auto\" (GPU 0, or the CPU where there is none), \"cuda\", \"cuda:N\" or "
           "\"cpu\".\n"
           "disk_cache: keep compiled kernels on disk, in `cache_dir` or the user's cache folder.\n"
           "check_pages: debug: run() reads kv_indices back and refuses ids out of range.")
      .def_prop_ro("device", [](const PyEngine& self) { return self.engine.device(); })
      .def_prop_ro(
          "ordinal", [](const PyEngine& self) { return self.place.ordinal; },
          "Of the GPU; 0 on the CPU.")
      .def(
          "register_variant",
          [](PyEngine& self, nb::handle spec) {
            Variant variant = read_variant(spec, self.engine.variants());
            self.engine.register_variant(variant);
            return variant;
          },
          nb::arg("spec"),
          "Makes a variant known: a dict, JSON text, the path of a JSON file, or a Variant. "
          "Replaces one of the same\n"
          "name; an Attention made before keeps the old one. Returns the Variant.")
      .def_prop_ro(
          "variants", [](const PyEngine& self) { return self.engine.variants().names(); },
          "Names of the registered variants, sorted.")
      .def(
          "variant",
          [](const PyEngine& self, const std::string& name) {
            return self.engine.variants().at(name);
          },
          nb::arg("name"))
      .def("attention", &attention, nb::arg("config") = nb::none(), nb::arg("words"),
           "Compiles, or finds in the cache, every kernel of the launch set; nothing is compiled "
           "later.\n\n"
           "Takes an AttentionConfig, or its words: attention(num_qo_heads=32, num_kv_heads=8, "
           "head_dim=128).")
      .def("merge_states", &make_merge_states, nb::kw_only(), nb::arg("head_dim"),
           nb::arg("state_dtype") = "f32", nb::arg("o_dtype") = "bf16",
           "Compiles, or finds in the cache, the kernel that merges partial states of "
           "attention.\n\n"
           "head_dim: a multiple of 8.\n"
           "state_dtype, o_dtype: of the states' o and of the result's: \"f32\", \"bf16\" or "
           "\"f16\".")
      .def("__repr__", [](const PyEngine& self) {
        return fmt::format("heddle.Engine({})", self.engine.device().name);
      });
}

}  // namespace heddle::python
