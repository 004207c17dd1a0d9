#pragma once

#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>

#include <optional>
#include <string_view>

#include "support/fuzz/core/hjson.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// What is printed reads the same.
inline bool takes_deepspeed(std::string_view bytes) {
  std::optional<Json> printed;
  try {
    printed = DeepSpeedConfig::from_text(bytes, "fuzz").to_json();
  } catch (const ConfigError& error) {
    const std::string_view text = error.what();
    require(names_a_place(text, "[config] fuzz") || names_a_place(text, "[deepspeed] fuzz") ||
                text.starts_with("[deepspeed] fuzz: "),
            error.what());
    return false;
  }
  try {
    require(DeepSpeedConfig::from_text(printed->dump(), "printed").to_json() == *printed,
            "it reads the same again");
  } catch (const ConfigError& error) {
    throw FuzzFinding(error.what());
  }
  return true;
}

}  // namespace lockstep::fuzz
