#pragma once

#include <lockstep/json.h>

#include <filesystem>

namespace lockstep::config {

// The content of a TOML file as JSON. Dates and times become strings. ConfigError names the file and the
// line and column of an error.
Json read_toml_file(const std::filesystem::path& path);

}  // namespace lockstep::config
