#include "tests/variant_formulas.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace heddle_tests {

using namespace heddle;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
double element(const Tensor& tensor, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(tensor.data) + offset * std::int64_t(sizeof value),
              sizeof value);
  return double(value);
}

// Bit `index` of packed words of `width` bits.
bool bit_of(double word, int index) { return std::uint64_t(word) >> index & 1; }

// --- rotary positions -----------------------------------------------------------------------

using Frequency = std::function<double(int pair, int width, const Given&)>;

double plain_frequency(int pair, int width, const Given& given) {
  return std::pow(given.param("theta"), -2.0 * pair / width);
}

// As in the model's own code: by wavelength, in three ranges.
double llama31_frequency(int pair, int width, const Given& given) {
  const double frequency = plain_frequency(pair, width, given);
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double context = given.param("original_context"), factor = given.param("factor");
  const double low = given.param("low_freq_factor"), high = given.param("high_freq_factor");
  if (wavelength < context / high) return frequency;
  if (wavelength > context / low) return frequency / factor;
  const double smooth = (context / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

Row rotate(const Row& row, int pos, int width, bool interleaved, const Given& given,
           const Frequency& frequency) {
  Row out = row;
  for (int i = 0; i < width / 2; ++i) {
    const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + width / 2;
    const double angle = pos * frequency(i, width, given);
    out[a] = row[a] * std::cos(angle) - row[b] * std::sin(angle);
    out[b] = row[b] * std::cos(angle) + row[a] * std::sin(angle);
  }
  return out;
}

Formula rotary(bool interleaved, bool partial, const Frequency& frequency) {
  const auto turn = [=](const Row& row, int pos, const Given& given) {
    const int given_width = partial ? int(given.param("rotary_dim")) : 0;
    return rotate(row, pos, given_width ? given_width : int(row.size()), interleaved, given,
                  frequency);
  };
  return {.query = turn, .key = turn};
}

Row normed(const Row& row, const std::string& weight, const Given& given) {
  double mean = 0;
  for (const double x : row) mean += x * x / double(row.size());
  Row out;
  for (std::size_t d = 0; d < row.size(); ++d)
    out.push_back(row[d] / std::sqrt(mean + given.param("eps")) *
                  given.at(weight, {std::int64_t(d)}));
  return out;
}

// --- the rest -------------------------------------------------------------------------------

// get_slopes of the authors' attention_with_linear_biases.
std::vector<double> alibi_slopes(int heads) {
  std::vector<double> slopes;
  int power = 1;
  while (2 * power <= heads) power *= 2;
  for (int h = 1; h <= power; ++h) slopes.push_back(std::pow(2.0, -8.0 * h / power));
  if (power == heads) return slopes;
  const std::vector<double> twice = alibi_slopes(2 * power);
  for (int h = 0; h < heads - power; ++h) slopes.push_back(twice[std::size_t(2 * h)]);
  return slopes;
}

Formula bias_of(std::function<double(const Place&, const Given&)> bias) {
  return {.logit = [bias](double logit, const Place& p, const Given& g) { return logit + bias(p, g); }};
}
Formula mask_of(std::function<bool(const Place&, const Given&)> keep) { return {.keep = keep}; }

bool is_past(const Place& p) { return p.kv_pos <= p.q_pos; }

std::map<std::string, Formula> make_formulas() {
  std::map<std::string, Formula> all;
  all["softmax"] = {};
  all["causal"] = mask_of([](const Place& p, const Given&) { return is_past(p); });
  all["sliding_window"] = mask_of([](const Place& p, const Given& g) {
    return is_past(p) && p.q_pos - p.kv_pos <= g.param("window");
  });
  all["streaming_llm"] = mask_of([](const Place& p, const Given& g) {
    return is_past(p) && (p.q_pos - p.kv_pos <= g.param("window") || p.kv_pos < g.param("sinks"));
  });
  all["chunked_local"] = mask_of([](const Place& p, const Given& g) {
    const int chunk = int(g.param("chunk"));
    return is_past(p) && p.q_pos / chunk == p.kv_pos / chunk;
  });
  all["custom_mask"] = mask_of([](const Place& p, const Given& g) {
    return bit_of(g.at("bits", {p.q_row, p.kv_pos / 8}), p.kv_pos % 8);
  });
  all["tree_mask"] = mask_of([](const Place& p, const Given& g) {
    const int draft = p.kv_pos - (p.kv_len - p.qo_len);
    return draft < 0 || bit_of(g.at("ancestors", {p.q_row, draft / 32}), draft % 32);
  });
  all["key_ranges"] = mask_of([](const Place& p, const Given&) { return p.first_key <= p.kv_pos && p.kv_pos < p.end_key; });
  all["prefix_lm"] = mask_of([](const Place& p, const Given& g) {
    return is_past(p) || p.kv_pos < g.at("prefix_lens", {p.request});
  });
  all["bidirectional_spans"] = mask_of([](const Place& p, const Given& g) {
    return is_past(p) || (p.q_pos >= 0 && p.kv_pos < g.at("span_ends", {p.request, p.q_pos}));
  });
  all["document"] = mask_of([](const Place& p, const Given& g) {
    return p.q_pos >= 0 && g.at("documents", {p.request, p.q_pos}) == g.at("documents", {p.request, p.kv_pos});
  });
  all["multi_item"] = mask_of([](const Place& p, const Given& g) {
    if (!is_past(p)) return false;
    const double item = g.at("items", {p.request, p.kv_pos});
    return item == 0 || item == g.at("items", {p.request, p.q_pos});
  });
  all["alibi"] = bias_of([](const Place& p, const Given& g) {
    return -g.at("slopes", {p.qo_head}) * (p.q_pos - p.kv_pos);
  });
  all["alibi_rule"] = bias_of([](const Place& p, const Given&) {
    return -alibi_slopes(p.num_qo_heads)[std::size_t(p.qo_head)] * (p.q_pos - p.kv_pos);
  });
  all["relative_bias"] = bias_of([](const Place& p, const Given& g) {
    const int far = int(g.param("max_distance"));
    return g.at("bias", {p.qo_head, std::clamp(p.kv_pos - p.q_pos, -far, far) + far});
  });
  all["dense_bias"] = bias_of([](const Place& p, const Given& g) {
    return g.at("bias", {p.qo_head, p.q_row, p.kv_pos});
  });
  all["soft_cap"] = {.logit = [](double logit, const Place&, const Given& g) {
    return g.param("cap") * std::tanh(logit / g.param("cap"));
  }};
  all["sigmoid"] = {.logit = [](double logit, const Place&, const Given& g) {
                      return 1 / (1 + std::exp(-logit - g.param("bias")));
                    },
                    .softmax = false};
  all["attention_sink"] = {.sink = [](const Place& p, const Given& g) { return g.at("sinks", {p.qo_head}); }};
  all["softmax_one"] = {.sink = [](const Place&, const Given&) { return 0.0; }};
  all["attention_temperature"] = {.query = [](const Row& row, int pos, const Given& g) {
    Row out = row;
    const double step = std::floor((std::max(pos, -1) + 1.0) / g.param("floor_scale"));
    for (double& x : out) x *= 1 + g.param("attn_scale") * std::log(step + 1.0);
    return out;
  }};
  all["rope"] = rotary(false, true, plain_frequency);
  all["rope_interleaved"] = rotary(true, true, plain_frequency);
  all["llama31_rope"] = rotary(false, false, llama31_frequency);
  all["qk_norm"] = {.query = [](const Row& row, int, const Given& g) { return normed(row, "q_weight", g); },
                    .key = [](const Row& row, int, const Given& g) { return normed(row, "k_weight", g); }};
  return all;
}

// A component's formula with its values.
struct Part {
  const Formula* formula;
  Given given;
};

class Attention {
 public:
  Attention(const Variant& variant, const ParamValues& params, const ReferenceInput& input)
      : in_(input), softmax_(variant.use_softmax) {
    const std::vector<double> values = variant.resolve(params);
    for (std::size_t i = 0; i < variant.components.size(); ++i)
      parts_.push_back({&formulas().at(variant.components[i].name), Given(variant, i, values, input.tensors)});
  }

  ReferenceResult run() const {
    ReferenceResult result;
    for (int row = 0; row < in_.qo_len; ++row)
      for (int head = 0; head < in_.num_qo_heads; ++head) attend(row, head, result);
    return result;
  }

 private:
  Row row_of(std::span<const double> all, int heads, int row, int head) const {
    const auto begin = all.begin() + (std::ptrdiff_t(row) * heads + head) * in_.head_dim;
    return Row(begin, begin + in_.head_dim);
  }
  Row transformed(Row row, int pos, bool is_query) const {
    for (const Part& part : parts_) {
      const auto& transform = is_query ? part.formula->query : part.formula->key;
      if (transform) row = transform(row, pos, part.given);
    }
    return row;
  }
  bool kept(const Place& p) const {
    return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return !part.formula->keep || part.formula->keep(p, part.given);
    });
  }
  double logit_of(double logit, const Place& p) const {
    for (const Part& part : parts_)
      if (part.formula->logit) logit = part.formula->logit(logit, p, part.given);
    return logit;
  }

  void attend(int row, int head, ReferenceResult& result) const {
    const int kv_head = head / (in_.num_qo_heads / in_.num_kv_heads);
    Place p{in_.request, head, in_.qo_begin + row, in_.qo_len, in_.kv_len, in_.kv_len - in_.qo_len + row, 0,
            in_.num_qo_heads};
    if (!in_.first_keys.empty()) p.first_key = in_.first_keys[std::size_t(row)], p.end_key = in_.end_keys[std::size_t(row)];
    const Row q = transformed(row_of(in_.q, in_.num_qo_heads, row, head), p.q_pos, true);
    const double scale = in_.sm_scale != 0 ? in_.sm_scale : 1 / std::sqrt(double(in_.head_dim));
    double sum = 0;
    for (const Part& part : parts_)
      if (part.formula->sink) sum += std::exp(part.formula->sink(p, part.given));
    Row o(std::size_t(in_.head_dim), 0.0);
    for (p.kv_pos = 0; p.kv_pos < in_.kv_len; ++p.kv_pos) {
      if (!kept(p)) continue;
      const Row k = transformed(row_of(in_.k, in_.num_kv_heads, p.kv_pos, kv_head), p.kv_pos, false);
      double dot = 0;
      for (std::size_t d = 0; d < k.size(); ++d) dot += q[d] * k[d];
      const double logit = logit_of(dot * scale, p);
      const double weight = softmax_ ? std::exp(logit) : logit;  // the test's logits are small
      sum += softmax_ ? weight : 0;
      const Row v = row_of(in_.v, in_.num_kv_heads, p.kv_pos, kv_head);
      for (std::size_t d = 0; d < v.size(); ++d) o[d] += weight * v[d];
    }
    const double total = softmax_ ? sum : 1;
    for (const double x : o) result.o.push_back(total == 0 ? 0 : x / total);
    result.lse.push_back(sum == 0 ? -kInfinity : std::log(sum));
  }

  const ReferenceInput& in_;
  bool softmax_;
  std::vector<Part> parts_;
};

}  // namespace

Given::Given(const Variant& variant, std::size_t component, std::vector<double> params,
             const std::map<std::string, Tensor>& tensors) {
  const Component& part = variant.components[component];
  for (const auto& [name, index] : part.params)
    params_[name] = variant.params[index].is_float ? double(float(params[index])) : params[index];
  for (const auto& [name, index] : part.tensors) tensors_[name] = tensors.at(variant.tensors[index].name);
}

double Given::param(const std::string& name) const { return params_.at(name); }

double Given::at(const std::string& name, std::vector<std::int64_t> index) const {
  const Tensor& tensor = tensors_.at(name);
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    // What a hook may not read either.
    if (index[axis] < 0 || index[axis] >= tensor.shape[axis])
      fail(ErrorKind::invalid_argument, "{} is read at {} on axis {}, which has {}.", name, index[axis], axis,
           tensor.shape[axis]);
    offset += index[axis] * tensor.strides[axis];
  }
  switch (tensor.dtype) {
    case DType::f32: return element<float>(tensor, offset);
    case DType::i32: return element<std::int32_t>(tensor, offset);
    case DType::u8: return element<std::uint8_t>(tensor, offset);
    case DType::u32: return element<std::uint32_t>(tensor, offset);
    default: break;
  }
  fail(ErrorKind::unsupported, "No formula reads {} yet.", name_of(tensor.dtype));
}

const std::map<std::string, Formula>& formulas() {
  static const std::map<std::string, Formula> all = make_formulas();
  return all;
}

ReferenceResult attend_by_formula(const Variant& variant, const ParamValues& params, const ReferenceInput& input) {
  return Attention(variant, params, input).run();
}

}  // namespace heddle_tests
