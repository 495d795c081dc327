// How this room says no: Error(invalid_argument) with one sentence.
#pragma once

#include <utility>

#include "engine/error.h"

namespace heddle {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorKind::invalid_argument, format, std::forward<Args>(args)...);
}

}  // namespace heddle
