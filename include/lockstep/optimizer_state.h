#pragma once

#include <lockstep/named_tensors.h>

#include <lockstep/json.h>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// All that an optimizer knows, by the names of the parameters.
//
// `tensors`: "PARAMETER/FIELD" for what belongs to one parameter, "0.weight/exp_avg";
// parameter names hold no "/". LBFGS keeps one flat state for all: "/d", "/old_dirs/0".
// An optimizer of a class that is not known here is one uint8 tensor, "/archive".
//
// `values`, a JSON object as text:
//   "class"   "Adam"
//   "groups"  [{"parameters": ["0.weight", ...], "options": {"lr": 0.1, ...}}, ...]
//   "state"   {"0.weight": {"step": 12}}: the numbers of each parameter that has had a
//             gradient; a parameter without entry has no state yet
struct OptimizerState {
  NamedTensors tensors;
  std::string values;
};

// The class of an optimizer: "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS",
// "Adadelta", "Lion", "Lamb", "AdamLbfgs", or its C++ name.
std::string optimizer_class(const torch::optim::Optimizer& optimizer);

// `parameters`: every parameter that the optimizer has, and any others, in the order of
// registration; torch::nn::Module::named_parameters() makes it. The tensors are the
// optimizer's own, not copies: the next step changes them. ConfigError: a parameter of
// the optimizer has no name here.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

// Copies the state into an optimizer of the same class with the same groups of the same
// parameters, on whatever device. Everything that a step depends on is then as it was,
// the options of the groups included. ConfigError names class, group or parameter and
// what differs; the optimizer is unchanged then.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                          const OptimizerState& state);

}  // namespace lockstep
