#pragma once

#include <lockstep/config.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <set>
#include <string>
#include <vector>

#include "config/option_table.h"

namespace lockstep::train {

// The options of a configuration's fields, for a program that has more of them. The table
// refers to the configuration. TrainConfig::validate() checks what the table alone does
// not: fields that contradict each other.
config::OptionTable options_of(TrainConfig& config);

// A table of a program's own options, which refers to their fields.
config::OptionTable options_of(const ProgramOptions& own);

// Reads the flags of a program: its own and those of the trainer, from a file, variables
// and the command line. `own` has in place of the trainer's options those that are named
// in `instead_of`. What its own options are set to becomes a part of config.hyperparams,
// so that the run folder tells it. Throws as OptionTable::parse does.
void parse_options(const std::string& description, const config::OptionTable& own, TrainConfig& config,
                   int argc, const char* const* argv, const std::set<std::string>& instead_of = {});

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
