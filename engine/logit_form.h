// What kind of function of the logit a variant's logits_transform is, read from its code: some kinds cost a kernel
// less than a call for every logit. Code in any other form is of no kind, and called for every logit as it stands.
#pragma once

#include "variants/variant.h"

namespace heddle {

struct LogitForm {
  // One expression of the logit, params and numbers with a tanh in it: templates/four_logits.cuh.
  bool is_by_four = false;
  // Of those, a * tanh(b * logit): templates/capped_logits.cuh.
  bool is_capped = false;
  // a * logit + b * kv_distance + c, where a, b and c are the same for all keys: templates/affine_logits.cuh.
  bool is_affine = false;
  bool keeps_scale = false;   // a is 1
  bool has_distance = false;  // b may be something else than 0
  // The same for keys that every part with a max_distance takes to be equally far: templates/affine_logits.cuh.
  bool is_affine_far = false;
  bool far_keeps_scale = false;
  bool far_has_distance = false;
};

// Of all parts, one after the other. `affine_beside_mask`: whether kernels have the registers for an affine form beside
// a free mask, whose loads take many.
LogitForm logit_form(const Variant& variant, bool affine_beside_mask);

}  // namespace heddle
