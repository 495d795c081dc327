// A shared object that is loaded from memory, as Module loads a cubin.
#pragma once

#include <string>
#include <string_view>

#include "engine/error.h"

namespace heddle {

// Move-only. The code stays mapped as long as the module lives.
class HostModule {
 public:
  HostModule() = default;
  explicit HostModule(std::string_view image);  // throws Error(io) where the loader refuses it
  ~HostModule();
  HostModule(HostModule&& other) noexcept;
  HostModule& operator=(HostModule&& other) noexcept;

  // Throws Error(io) where the image has no such symbol.
  void* symbol(const std::string& name) const;

  explicit operator bool() const { return handle_ != nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace heddle
