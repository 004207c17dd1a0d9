#pragma once

#include <lockstep/json.h>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_text.h"

namespace lockstep::checkpoint {

// base/json_text.h for files of checkpoints: everything that is wrong is a CheckpointError
// with the path of the file.

// "'file' is broken: reason".
[[noreturn]] void fail_broken(const std::filesystem::path& path, const std::string& reason);

inline Json parse_json(std::string_view text, const std::filesystem::path& path) {
  return base::parse_json(text, path, fail_broken);
}

class JsonObject : public base::JsonObject {
 public:
  JsonObject(const Json& value, const std::filesystem::path& path, std::string place)
      : base::JsonObject(value, path, std::move(place), fail_broken) {}

  std::string checksum(const char* key) const;
};

}  // namespace lockstep::checkpoint
