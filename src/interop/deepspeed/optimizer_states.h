#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interop/torch_archive.h"

namespace lockstep::interop {

// What one rank has of the optimizer: float32 weights and moments of flat groups, each the
// rank's part of the parameters in it. Where nothing is divided a parameter is a group.
// Points into the archive.
struct OptimizerStates {
  struct Flat {
    const TensorReference* master = nullptr;               // null: the weights themselves are float32
    std::map<std::string, const TensorReference*> fields;  // "exp_avg"
    std::optional<int64_t> step;
    bool has_state = false;
  };
  // A group of options, and the flat groups that have them.
  struct Group {
    const Dict* options = nullptr;
    std::vector<size_t> flats;
  };

  int64_t stage = 0;
  int64_t partitions = 1;  // over how many ranks it is divided
  std::vector<Flat> flats;
  std::vector<Group> groups;
  ValueRef loss_scale = nullptr;  // an object with attributes, or the dict that has them; or null
};

// Of a "…optim_states.pt". ConfigError names the file and what is wrong with it, or what
// is not read here.
OptimizerStates read_optimizer_states(const TorchArchive& archive);

// Of the model's file, where nothing is divided: `optimizer` as it says there.
OptimizerStates read_whole_optimizer(const TorchArchive& archive, ValueRef optimizer);

}  // namespace lockstep::interop
