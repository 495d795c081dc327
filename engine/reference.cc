#include "engine/reference.h"

#include <algorithm>
#include <cmath>

#include "engine/host_kernel.h"
#include "engine/variant_args.h"

namespace heddle {
namespace {

int vo_dim(const ReferenceInput& in) { return in.head_dim_vo != 0 ? in.head_dim_vo : in.head_dim; }
int num_rows(const ReferenceInput& in) { return in.num_rows < 0 ? in.qo_len : in.num_rows; }

void check_input(const Variant& variant, const ReferenceInput& in) {
  const auto need = [](const char* name, std::size_t found, std::int64_t wanted) {
    if (static_cast<std::int64_t>(found) != wanted)
      fail(ErrorKind::invalid_argument, "The reference's {} has {} elements; its shape asks for {}.", name, found, wanted);
  };
  const std::int64_t kv = std::int64_t{in.kv_len} * in.num_kv_heads;
  need("q", in.q.size(), std::int64_t{num_rows(in)} * in.num_qo_heads * in.head_dim);
  need("k", in.k.size(), kv * in.head_dim);
  need("v", in.v.size(), kv * vo_dim(in));
  const int given = variant.mask.rows_given ? num_rows(in) : 0;
  need("first_keys", in.first_keys.size(), given);
  need("end_keys", in.end_keys.size(), given);
}

// Of `dtype` around x: how far rounding to nearest moves a value at most.
double half_spacing(DType dtype, double x) {
  if (dtype != DType::f16 && dtype != DType::bf16) return 0;
  const int digits = dtype == DType::bf16 ? 8 : 11;
  const int least = dtype == DType::bf16 ? -133 : -24;  // exponent of the smallest subnormal
  const int exponent = x == 0 || !std::isfinite(x) ? least : std::max(std::ilogb(x) + 1 - digits, least);
  return std::ldexp(0.5, exponent);
}

}  // namespace

ReferenceResult reference(const Engine&, const Variant& variant, const ParamValues& params, const ReferenceInput& in) {
  static KernelCache cache;
  check_input(variant, in);
  const std::vector<double> values = variant.resolve(params);
  const ArgLayout layout = arg_layout(variant);
  VariantArgs args{};
  pack_params(variant, layout, values, args);
  pack_tensors(variant, layout, in.tensors, {}, values, args);
  ReferenceResult result;
  result.o.resize(static_cast<std::size_t>(num_rows(in)) * in.num_qo_heads * vo_dim(in));
  result.lse.resize(static_cast<std::size_t>(num_rows(in)) * in.num_qo_heads);
  ReferenceProblem problem;
  problem.num_qo_heads = in.num_qo_heads, problem.num_kv_heads = in.num_kv_heads, problem.head_dim = in.head_dim;
  problem.head_dim_vo = in.head_dim_vo;
  problem.request = in.request, problem.qo_begin = in.qo_begin;
  problem.qo_len = in.qo_len, problem.kv_len = in.kv_len;
  problem.row_begin = in.row_begin, problem.num_rows = in.num_rows;
  problem.sm_scale = in.sm_scale != 0 ? in.sm_scale : 1 / std::sqrt(static_cast<double>(in.head_dim));
  problem.mask = in.mask.value_or(variant.bounds(values));
  if (variant.mask.rows_given) problem.first_keys = in.first_keys.data(), problem.end_keys = in.end_keys.data();
  problem.rounding = in.rounding;
  problem.q = in.q.data(), problem.k = in.k.data(), problem.v = in.v.data();
  problem.o = result.o.data(), problem.lse = result.lse.data();
  host_kernel(cache, variant, values).reference(&problem, &args);
  return result;
}

double allowed_error(const ReferenceResult& exact, const ReferenceResult& plain, DType dtype) {
  double lost = 0, largest = 0;
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    lost = std::max(lost, 2 * std::abs(plain.o[i] - exact.o[i]));
    largest = std::max(largest, std::abs(exact.o[i]));
  }
  return largest + lost == 0 ? 0 : lost + half_spacing(dtype, largest + lost);
}

double lost_lse(const ReferenceResult& exact, const ReferenceResult& plain) {
  double lost = 0;
  for (std::size_t i = 0; i < exact.lse.size(); ++i)
    if (plain.lse[i] != exact.lse[i]) lost = std::max(lost, 2 * std::abs(plain.lse[i] - exact.lse[i]));
  return lost;
}

}  // namespace heddle
