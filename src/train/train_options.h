#pragma once

#include <lockstep/train_config.h>

#include <string>

#include "config/option_table.h"

namespace lockstep::train {

// The options of a configuration's fields, for a program that has more of them. The table
// refers to the configuration. TrainConfig::validate() checks what the table alone does
// not: fields that contradict each other.
config::OptionTable options_of(TrainConfig& config,
                               const std::string& description = "A training program on Lockstep.");

}  // namespace lockstep::train
