#include "tools/json.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"

namespace heddle::tools {

void write_json(const std::string& path, const nlohmann::ordered_json& value) {
  if (path.empty()) return;
  const std::string text = value.dump(1) + "\n";
  if (path == "-") {
    fmt::print("{}", text);
  } else {
    write_text_file(path, text);
  }
}

nlohmann::json parse_json(std::string_view text, const std::string& file) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorKind::invalid_argument, "{} is not JSON: {}.", file, error.what());
  }
}

std::string read_text_file(const std::string& path) {
  if (std::filesystem::is_directory(path))
    fail(ErrorKind::io, "{} is a folder; give a file.", path);
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) fail(ErrorKind::io, "The file {} cannot be read: {}.", path, std::strerror(errno));
  return text;
}

void write_text_file(const std::string& path, std::string_view text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream)
    fail(ErrorKind::io, "The file {} cannot be written: {}.", path, std::strerror(errno));
}

}  // namespace heddle::tools
