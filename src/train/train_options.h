#pragma once

#include <lockstep/config.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <string>
#include <vector>

#include "config/option_table.h"

namespace lockstep::train {

// The options of a configuration's fields. The table refers to the configuration. TrainConfig::validate()
// checks what the table alone does not: fields that contradict each other.
config::OptionTable options_of(TrainConfig& config);

// An option of the trainer or of its program that a DeepSpeed configuration says, too.
struct GovernedOption {
  std::string name;
  std::string key;  // the configuration's
};

// Those that `file` governs and whose values in `after` are not those in `before`: both are
// JSON objects of options by name. An option that is in neither is passed over.
std::vector<GovernedOption> governed_changes(const DeepSpeedConfig& file, const Json& before,
                                             const Json& after);

}  // namespace lockstep::train
