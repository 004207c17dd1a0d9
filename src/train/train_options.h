#pragma once

#include <lockstep/callbacks.h>
#include <lockstep/config.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <string>
#include <vector>

#include "config/option_table.h"

namespace lockstep::train {

// The options of a configuration's fields. The table refers to the configuration. The table does not
// check fields that contradict each other; TrainConfig::validate() does.
config::OptionTable options_of(TrainConfig& config);

// Whether a callback of the configuration does this.
bool has_action(const TrainConfig& config, FitAction action);

// Whether the end of a training may upload the model to a server, which takes any time.
bool uploads_model(const TrainConfig& config);

// The values of all options if no flag, variable or file sets one, in the form of TrainConfig::to_json().
Json program_defaults(const TrainConfig& config);

// An option of the trainer or of its program that a DeepSpeed configuration also sets.
struct GovernedOption {
  std::string name;
  std::string key;  // of the DeepSpeed configuration
};

// The options that `file` sets and whose values differ between `before` and `after`, which are JSON
// objects of options by name. Options that are in neither are ignored.
std::vector<GovernedOption> governed_changes(const DeepSpeedConfig& file, const Json& before,
                                             const Json& after);

}  // namespace lockstep::train
