#pragma once

#include <lockstep/deepspeed_config.h>

#include <lockstep/json.h>
#include <string>
#include <vector>

namespace lockstep::train {

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
