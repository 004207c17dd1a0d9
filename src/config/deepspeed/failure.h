#pragma once

#include <fmt/format.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>

#include <string>
#include <string_view>

namespace lockstep::deepspeed {

// The place of a key in the file: "ds.json:3:5". If the key is not in the file, the place of its section,
// else the name of the file. Empty for a configuration that was not read from a file.
inline std::string place_of(const DeepSpeedConfig& config, std::string_view key) {
  for (;;) {
    const auto found = config.places.find(key);
    if (found != config.places.end()) return found->second;
    if (key.empty()) return "";
    const size_t dot = key.rfind('.');
    key = key.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
}

// ConfigError "[deepspeed] ds.json:3:5: sentence".
[[noreturn]] inline void fail_at(const DeepSpeedConfig& config, std::string_view key,
                                 std::string_view sentence) {
  const std::string place = place_of(config, key);
  throw ConfigError("deepspeed",
                    place.empty() ? std::string(sentence) : fmt::format("{}: {}", place, sentence));
}

}  // namespace lockstep::deepspeed
