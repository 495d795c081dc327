// Sampled rows of a workload in double precision: straight from the definition where it asks for no
// more than causal, a soft cap and a window, by the reference of any variant where it names one.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "engine/reference.h"
#include "tools/bench_data.h"
#include "tools/half.h"
#include "tools/parallel.h"

namespace heddle::tools {
namespace {

double larger(double a, double b) { return !(b <= a) ? b : a; }  // NaN is the largest

constexpr double kMostAllowed = 2e-2;    // of means of values near 1
constexpr double kMeanAtMost = 4;        // what those come to; sums without softmax go beyond
constexpr double kMostOfLargest = 5e-2;  // of small outputs; rounding alone costs a tenth of that

std::vector<double> logits_of(const BenchData& data, int request, int row, int qo_head,
                              const VisibleKeys& keys) {
  const Workload& w = data.workload();
  const int dim = w.heads.head_dim,
            kv_head = qo_head / (w.heads.num_qo_heads / w.heads.num_kv_heads);
  std::vector<float> q(dim);
  for (int d = 0; d < dim; ++d) q[d] = to_float(data.q_row(request, row, qo_head)[d], w.dtype);
  std::vector<double> logits;
  for (int j = int(keys.begin); j < keys.end; ++j) {
    const std::uint16_t* k = data.k_row(request, j, kv_head);
    double logit = 0;
    for (int d = 0; d < dim; ++d) logit += double(q[d]) * to_float(k[d], w.dtype);
    logit /= std::sqrt(double(dim));
    logits.push_back(w.soft_cap > 0 ? w.soft_cap * std::tanh(logit / w.soft_cap) : logit);
  }
  return logits;
}

std::vector<double> output_of(const BenchData& data, int request, int row, int qo_head) {
  const Workload& w = data.workload();
  const int dim = w.heads.vo_dim(),
            kv_head = qo_head / (w.heads.num_qo_heads / w.heads.num_kv_heads);
  const VisibleKeys keys = w.keys_of(request, row);
  std::vector<double> o(dim, 0.0);
  const std::vector<double> logits = logits_of(data, request, row, qo_head, keys);
  if (logits.empty()) return o;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (int j = int(keys.begin); j < keys.end; ++j) {
    const double weight = std::exp(logits[j - keys.begin] - largest);
    const std::uint16_t* v = data.v_row(request, j, kv_head);
    sum += weight;
    for (int d = 0; d < dim; ++d) o[d] += weight * to_float(v[d], w.dtype);
  }
  for (double& x : o) x /= sum;
  return o;
}

// Adds one row of the output. `expected`: the right one, head by head.
void compare_row(const BenchData& data, int request, int row,
                 const std::function<std::vector<double>(int head)>& expected, OutputError& found) {
  const int heads = data.workload().heads.num_qo_heads, dim = data.workload().heads.vo_dim();
  const std::vector<std::uint16_t> output = data.read_output(request, row);
  std::vector<OutputError> of_head(heads);
  parallel_for(heads, [&](int head) {
    const std::vector<double> right = expected(head);
    for (int d = 0; d < dim; ++d) {
      const double value = to_float(output[std::size_t(head) * dim + d], data.workload().dtype);
      of_head[head].error = larger(of_head[head].error, std::abs(value - right[d]));
      of_head[head].largest = larger(of_head[head].largest, std::abs(right[d]));
    }
  });
  for (const OutputError& head : of_head) {
    found.error = larger(found.error, head.error);
    found.largest = larger(found.largest, head.largest);
  }
}

using RowOf = const std::uint16_t* (BenchData::*)(int request, int position, int head) const;

// Positions [begin, end): [position, head, dim].
std::vector<double> gather(const BenchData& data, RowOf row_of, int request, int begin, int end, int heads, int dim) {
  std::vector<double> values(std::size_t(end - begin) * heads * dim);
  parallel_for(end - begin, [&](int i) {
    double* to = values.data() + std::size_t(i) * heads * dim;
    for (int head = 0; head < heads; ++head) {
      const std::uint16_t* row = (data.*row_of)(request, begin + i, head);
      for (int d = 0; d < dim; ++d) *to++ = to_float(row[d], data.workload().dtype);
    }
  });
  return values;
}

// A composition whose hooks are all of one registered variant is that one under the mask of the whole, and
// what is registered needs no compiler here.
const Variant& with_its_hooks(const Engine& engine, const Workload& w, const Variant& whole) {
  if (whole.mask.rows_given) return whole;  // a part may not take the ranges
  const Variant* found = nullptr;
  for (const std::string& name : w.compose) {
    const Variant& part = engine.variants().at(name);
    const bool has_hooks = std::any_of(part.components.begin(), part.components.end(),
                                       [](const Component& component) { return !component.hooks.empty(); });
    if (!has_hooks) continue;
    if (found != nullptr) return whole;
    found = &part;
  }
  return found != nullptr && w.params.empty() ? *found : whole;
}

using Row = std::function<std::vector<double>(int row, int head)>;

// Rows of one request by the variant's reference.
Row reference_of(const BenchData& data, const WorkloadVariant& rule, int request, const std::set<int>& rows) {
  const Workload& w = data.workload();
  const int kv_len = w.kv_lens[request], heads = w.heads.num_qo_heads, vo_dim = w.heads.vo_dim();
  const std::vector<double> k =
      gather(data, &BenchData::k_row, request, 0, kv_len, w.heads.num_kv_heads, w.heads.head_dim);
  const std::vector<double> v = gather(data, &BenchData::v_row, request, 0, kv_len, w.heads.num_kv_heads, vo_dim);
  const Variant& variant = with_its_hooks(data.engine(), w, rule.variant);
  std::map<int, std::vector<double>> outputs;
  for (const int row : rows) outputs[row];
  parallel_for(int(rows.size()), [&](int i) {
    const auto entry = std::next(outputs.begin(), i);
    const std::vector<double> q =
        gather(data, &BenchData::q_row, request, entry->first, entry->first + 1, heads, w.heads.head_dim);
    const KeyRanges ranges = w.ranges.part(std::size_t(data.batch().qo_indptr[request] + entry->first), 1);
    const ReferenceInput input{.num_qo_heads = heads,
                               .num_kv_heads = w.heads.num_kv_heads,
                               .head_dim = w.heads.head_dim,
                               .head_dim_vo = w.heads.head_dim_vo,
                               .request = request,
                               .qo_begin = data.batch().qo_indptr[request],
                               .qo_len = w.qo_lens[request],
                               .kv_len = kv_len,
                               .row_begin = entry->first,
                               .num_rows = 1,
                               .mask = w.mask,
                               .q = q,
                               .k = k,
                               .v = v,
                               .tensors = rule.tensors,
                               .first_keys = ranges.first,
                               .end_keys = ranges.end};
    entry->second = reference(data.engine(), variant, rule.params, input).o;
  });
  return [outputs, vo_dim](int row, int head) {
    const auto begin = outputs.at(row).begin() + std::ptrdiff_t(head) * vo_dim;
    return std::vector<double>(begin, begin + vo_dim);
  };
}

void compare_request(const BenchData& data, const WorkloadVariant& rule, int request,
                     OutputError& found) {
  const Workload& w = data.workload();
  const int qo_len = w.qo_lens[request];
  if (qo_len == 0) return;
  const std::set<int> rows{0, qo_len / 3, qo_len - 1};
  Row right = [&](int row, int head) { return output_of(data, request, row, head); };
  if (!w.variant.empty()) right = reference_of(data, rule, request, rows);
  for (const int row : rows) compare_row(data, request, row, [&](int head) { return right(row, head); }, found);
}

}  // namespace

double OutputError::allowed() const {
  return std::min(kMostAllowed * std::max(1.0, largest / kMeanAtMost), kMostOfLargest * largest);
}

std::string wrong_result(const OutputError& found) {
  return fmt::format("wrong result: error {:.3g} on the sampled rows, {:.3g} is allowed",
                     found.error, found.allowed());
}

OutputError output_error(const BenchData& data, const WorkloadVariant& rule, int num_requests) {
  OutputError found;
  const int last = num_requests - 1;
  for (const int request : std::set<int>{0, last / 2, last})
    compare_request(data, rule, request, found);
  return found;
}

}  // namespace heddle::tools
