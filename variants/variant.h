// Door of the room `variants`: what attention computes, as data.
//
// A variant is a few lines of JSON: run-time params, device tensors, a declared mask, and hooks,
// which are bodies of small functions. The way in is one line for everybody, built-in or user:
//
//   text -> spec_text (tree with lines) -> spec_reader (one typed spec, checked; hook_code and
//   code_scanner judge the snippets) -> compose (parts chained, names settled) -> Variant
//
// A Variant holds everything that the rest needs and no JSON. The engine renders its hooks into a
// unit, the planner gets bounds() as plain integers and prices the tiles that they leave, and
// reference_attention.h is the definition of the result: whole rows in double precision.
//
// Promises. A spec that was read is whole: every name resolves, every default is in its range, the
// arguments fit VariantArgs, a snippet cannot leave its function. A spec that was not gets one
// sentence with file, line, JSON pointer, the value found and what is allowed. A registered variant
// never changes: composing copies its parts, so replacing a name later leaves earlier ones alone.
//
// The room does not know C++ beyond brackets and words (a compiler judges the rest, later), no
// device, no batch, and no variant by its name.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/types.h"
#include "templates/abi.h"
#include "templates/hook_context.h"
#include "variants/tensor_axis.h"

namespace heddle {

enum class Hook {
  query_transform,
  key_transform,
  value_transform,
  logits_transform,
  logits_mask,
  output_transform,
  initial_state,
};
inline constexpr int kNumHooks = 7;
std::string_view name_of(Hook hook);

// Which element of the same row a transform of q, k or v sees as `pair`: x[d +- W/2] of the first W
// columns, or x[d ^ 1].
enum class RotaryPair { none, half_split, interleaved };

struct Param {
  std::string name;      // public name; "soft_cap.cap" where a composition had a clash
  bool is_float = true;  // f32 or i32
  double default_value = 0;
  bool has_default = true;
  std::optional<double> min, max;
  bool constant = false;  // compiled into the unit; fixed when the Attention is made
  std::string doc;
};

struct TensorParam {
  std::string name;
  DType dtype = DType::f32;
  std::vector<TensorAxis> shape;
  // What its values mean, for whoever makes some up (verify, tests); a run never reads them back.
  std::optional<double> min, max;
  std::string doc;
};

struct HookCode {
  std::string code;  // body of an f32 function (bool for logits_mask)
  RotaryPair pair = RotaryPair::none;
  std::string rotary_dim;  // columns that have one: a constant i32 param of the spec, or a number; empty: all
  // logits_transform: an i32 param of the spec, or a number; kv_pos and kv_distance are those of a key no further from
  // q_pos than that. Empty: wherever the key is.
  std::string max_distance;
  bool new_keys = false;   // logits_mask: asked only of keys from kv_len - qo_len on, those of the request's own rows
  std::string rms_norm;    // a constant f32 param or a number, the epsilon; empty: x comes as it is
  int line = 1;  // of Component::file, where the code stands (a JSON string is one line there)
};

// One spec's own hooks. Local names are what its snippets say (params.cap, tensors.slopes); they
// point into the composed variant's lists.
struct Component {
  std::string name;
  std::string file;  // without folders: "gemma2.json", or "<memory>"
  std::map<Hook, HookCode> hooks;
  std::map<std::string, int> params;   // local name -> index in Variant::params
  std::map<std::string, int> tensors;  // local name -> index in Variant::tensors
  std::optional<bool> use_softmax;     // as the spec said it; most specs have no opinion
};

// A window or sink bound: a number, or the index of an i32 param.
struct Bound {
  std::int32_t literal = 0;
  int param = -1;
};

// Declared mask structure. Several bounds of one kind AND together: the smallest holds.
struct DeclaredMask {
  bool causal = false;
  std::vector<Bound> window_left, window_right;
  std::vector<Bound> sink;  // at most one component declares it
  bool rows_given = false;  // each row sees a range of keys that comes with every batch, and of it what the rest leaves
};

// Values by public name. Missing ones take the spec's default.
using ParamValues = std::map<std::string, double>;

class VariantRegistry;

struct Variant {
  std::string name;
  std::string doc;
  std::string file;  // where it came from
  std::string json;  // the spec's text, as given
  std::vector<Param> params;
  std::vector<TensorParam> tensors;
  std::vector<Component> components;  // in order: transforms chain left to right, masks are ANDed
  DeclaredMask mask;
  bool use_softmax = true;

  // Read and validate. `known` resolves "compose". Errors say file, JSON pointer, the value found
  // and what is allowed; an unknown key, type or name is answered with the nearest valid one.
  static Variant from_json(std::string_view text, std::string_view file,
                           const VariantRegistry& known);
  static Variant from_file(const std::string& path, const VariantRegistry& known);

  bool has(Hook hook) const;
  bool masks_new_keys_only() const;  // has a logits_mask, in no part asked of older keys
  // What the chain of a query, key or value transform sees as `pair`; all its parts that ask agree.
  RotaryPair pair(Hook hook) const;
  // The same with all that the chain asks of its row; refuses what one row cannot be to all parts.
  RowInput row_input(Hook hook, const std::vector<double>& values) const;
  // Every param's value in order of `params`: checked for unknown names, type and range.
  std::vector<double> resolve(const ParamValues& values) const;
  // The declared mask with values put in (resolve()'s result).
  MaskBounds bounds(const std::vector<double>& values) const;
};

// Variants by name; starts with the built-in ones (this room's *.json, embedded at build).
class VariantRegistry {
 public:
  VariantRegistry();
  void add(Variant variant);                       // replaces one of the same name
  const Variant& at(std::string_view name) const;  // Error with the nearest name if unknown
  std::vector<std::string> names() const;          // sorted

 private:
  std::map<std::string, Variant, std::less<>> variants_;
};

}  // namespace heddle
