#pragma once

#include <filesystem>
#include <string>

namespace lockstep::config {

// The text of a document, and what to call it in messages.
struct HjsonSource {
  std::string name;
  std::string text;
};

// ConfigError: cannot be read, no regular file, or larger than a document may be.
HjsonSource read_hjson_file(const std::filesystem::path& path);

// What stands on a command line: a path, or where no such file is, the document itself in
// URL-safe base64, with or without padding. ConfigError: it is neither.
HjsonSource read_hjson_argument(const std::string& path_or_base64);

}  // namespace lockstep::config
