#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace lockstep::config {

// The content of a TOML file as JSON. Dates and times become text. ConfigError names
// the file, and the line and column of what is wrong.
nlohmann::json read_toml_file(const std::filesystem::path& path);

}  // namespace lockstep::config
