#pragma once

#include <lockstep/program_options.h>
#include <lockstep/train_config.h>

#include <set>
#include <string>

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

}  // namespace lockstep::train
