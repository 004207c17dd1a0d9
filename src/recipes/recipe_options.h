#pragma once

#include <lockstep/train_config.h>

#include <set>
#include <string>

#include "config/option_table.h"

namespace lockstep::recipes {

// Reads the flags of a recipe: its own and those of the trainer, from a file, variables
// and the command line. `own` has in place of the trainer's options those that are named
// in `instead_of`. What its own options are set to becomes a part of config.hyperparams,
// so that the run folder tells it. Throws as OptionTable::parse does.
void parse_options(const std::string& description, const config::OptionTable& own, TrainConfig& config,
                   int argc, const char* const* argv, const std::set<std::string>& instead_of = {});

}  // namespace lockstep::recipes
