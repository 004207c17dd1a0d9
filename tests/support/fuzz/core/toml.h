#pragma once

#include <lockstep/error.h>

#include <string_view>

#include "config/toml_file.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

inline bool takes_toml(std::string_view bytes) {
  static MemoryFile file;
  try {
    require(config::read_toml_file(file.write(bytes)).is_object(), "a TOML file is a table");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
