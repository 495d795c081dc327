// Values for the tensors that a variant asks for, so that `verify` can run any spec: random, in
// the declared shape, on the device and on the host (where the reference reads them).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/device_memory.h"

namespace heddle::tools {

class VariantTensors {
 public:
  // `words` gives each word of a shape its size: num_qo_heads, kv_len, ...
  VariantTensors(const Engine& engine, const Variant& variant,
                 const std::map<std::string, std::int64_t>& words, std::uint64_t seed);

  const std::map<std::string, Tensor>& on_device() const { return on_device_; }
  const std::map<std::string, Tensor>& on_host() const { return on_host_; }

 private:
  std::vector<std::vector<std::byte>> host_;
  std::vector<DeviceMemory> device_;
  std::map<std::string, Tensor> on_device_, on_host_;
};

}  // namespace heddle::tools
