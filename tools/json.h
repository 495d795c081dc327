// Figures for other programs: what `--json FILE` writes, and reading JSON with errors in words.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace heddle::tools {

// Writes `value` to the file, "-" being stdout; does nothing where `path` is empty.
void write_json(const std::string& path, const nlohmann::ordered_json& value);

// `file` is what the error calls it.
nlohmann::json parse_json(std::string_view text, const std::string& file);

std::string read_text_file(const std::string& path);
void write_text_file(const std::string& path, std::string_view text);

}  // namespace heddle::tools
