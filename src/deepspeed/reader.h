#pragma once

#include <lockstep/deepspeed_config.h>

#include <string_view>

#include "config/hjson.h"

namespace lockstep::deepspeed {

// What a document says, key by key, by the table of key.h. ConfigError names file, line and
// column. Values that do not go together are for DeepSpeedConfig::validate().
DeepSpeedConfig read_document(const config::HjsonNode& root, std::string_view name);

}  // namespace lockstep::deepspeed
