#pragma once

#include <lockstep/json.h>
#include <string>
#include <vector>

#include "interop/deepspeed/optimizer_states.h"

namespace lockstep::interop {

// An optimizer of Python's as one of ours.
struct OptimizerKind {
  std::string name;                  // "AdamW", as optimizer_class() says
  std::vector<std::string> fields;   // what a parameter may have: "exp_avg"
  std::vector<std::string> options;  // of a group: "lr"
  bool counts_steps = false;
};

// By what its state has, its groups and the configuration say. `wanted`: "Adam" or
// "AdamW", where the file does not say which; or empty. PickleError: it is not known here,
// or is told nowhere.
OptimizerKind kind_of_optimizer(const OptimizerStates& states, ValueRef config, const std::string& wanted);

// The options of a group. PickleError names one that has no counterpart.
Json options_of_group(const OptimizerKind& kind, const Dict& options);

}  // namespace lockstep::interop
