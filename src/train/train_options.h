#pragma once

#include <lockstep/config.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <set>
#include <string>
#include <vector>

#include "config/option_table.h"

namespace lockstep::train {

// The options of a configuration's fields, for a program that adds options. The table refers to the
// configuration. The table does not check fields that contradict each other; TrainConfig::validate()
// does.
config::OptionTable options_of(TrainConfig& config);

// A table of a program's own options, which refers to their fields.
config::OptionTable options_of(const ProgramOptions& own);

// Reads the flags of a program, its own and the trainer's, from a file, variables and the command line.
// `own` replaces the trainer's options that `instead_of` names. The values of its options are added to
// config.hyperparams, so that the run folder records them. Throws as OptionTable::parse() does.
void parse_options(const std::string& description, const config::OptionTable& own, TrainConfig& config,
                   int argc, const char* const* argv, const std::set<std::string>& instead_of = {});

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
