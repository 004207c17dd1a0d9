#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

// An option that a program has beside those of TrainConfig. It refers to the field, which
// must outlive it and holds the default.
struct ProgramOption {
  using Field = std::variant<std::reference_wrapper<std::string>, std::reference_wrapper<bool>,
                             std::reference_wrapper<int64_t>, std::reference_wrapper<double>>;

  std::string name;  // "base_lr": --base_lr, --base-lr, LOCKSTEP_BASE_LR, a key of the file
  Field field;
  std::string help;
};

// Options of a program's own:
//
//   double lr = 0.1;
//   std::string data = "data";
//   const ProgramOptions own = {{"lr", lr, "learning rate"}, {"data", data, "folder of the data"}};
//   return launch(argc, argv, defaults, own, [&](World& world, const TrainConfig& config) { ... });
//
// They come from where those of TrainConfig come from: the flag, else the variable
// LOCKSTEP_<NAME>, else the file. What they are set to is among the run's hyperparameters. A
// name that TrainConfig has takes its place.
using ProgramOptions = std::vector<ProgramOption>;

}  // namespace lockstep
