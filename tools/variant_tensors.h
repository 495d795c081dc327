// Values for the tensors that a variant asks for, so that `verify` can run any spec: random, in
// the declared shape, on the device and on the host (where the reference reads them).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/device_memory.h"

namespace heddle::tools {

// What the words of a shape stand for in a batch of requests with these lengths.
ShapeWords shape_words(const AttentionConfig& config, std::span<const std::int32_t> qo_lens,
                       std::span<const std::int32_t> kv_lens);

class VariantTensors {
 public:
  // `words` gives each word of a shape its size, `params` each param that is not at its default.
  VariantTensors(const Engine& engine, const Variant& variant, const ShapeWords& words,
                 const ParamValues& params, std::uint64_t seed);

  const std::map<std::string, Tensor>& on_device() const { return on_device_; }
  const std::map<std::string, Tensor>& on_host() const { return on_host_; }
  double bytes() const;

 private:
  std::vector<std::vector<std::byte>> host_;
  std::vector<DeviceMemory> device_;
  std::map<std::string, Tensor> on_device_, on_host_;
};

}  // namespace heddle::tools
