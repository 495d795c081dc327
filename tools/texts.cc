#include "tools/texts.h"

#include <cassert>
#include <span>

#include "engine/types.h"

namespace heddle::embedded {
std::span<const EmbeddedFile> tool_texts();
}  // namespace heddle::embedded

namespace heddle::tools {

std::string_view embedded_text(std::string_view path) {
  for (const EmbeddedFile& file : embedded::tool_texts()) {
    if (file.path == path) return file.text;
  }
  assert(false && "the build embeds every text that the tools name");
  return {};
}

}  // namespace heddle::tools
