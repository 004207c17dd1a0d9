#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/pickle.h"
#include "checkpoint/torch_archive.h"

namespace lockstep::checkpoint {

struct ShapedName {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

// The content of a "...model_states.pt" of DeepSpeed. Points into the archive.
struct ModelStates {
  TensorReferences module;  // parameters and buffers in the order of the file; each name once
  std::set<std::string> buffers;
  // The parameters of each flat group of the optimizer, in their order there. Empty at stage 0.
  std::vector<std::vector<ShapedName>> groups;
  std::vector<ShapedName> frozen;                              // if they are sharded
  std::map<std::string, const TensorReference*> frozen_parts;  // of this rank
  std::map<std::string, std::string> shared;                   // a tied name without values -> its owner
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  int64_t samples = 0;
  int64_t ranks = 0;             // 0: not in the file
  std::string version;           // of DeepSpeed
  ValueRef optimizer = nullptr;  // null: sharded, in other files
  ValueRef config = nullptr;     // may be null
  ValueRef schedule = nullptr;   // of the learning rate; may be null
  // The client state of save_checkpoint, and unknown keys.
  std::vector<std::pair<std::string, ValueRef>> others;

  const TensorReference* find(const std::string& name) const;  // in module; null: none
};

// ConfigError names the file and the reason, for example a model that is sharded by tensor
// parallelism.
ModelStates read_model_states(const TorchArchive& archive);

// The optimizer of one rank: float32 weights and moments of flat groups, each the rank's shard of the
// parameters in it. At stage 0 each parameter is a flat group. Points into the archive.
struct OptimizerStates {
  struct Flat {
    const TensorReference* master = nullptr;               // null: the weights are float32
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
  int64_t partitions = 1;  // the number of ranks that it is sharded over
  std::vector<Flat> flats;
  std::vector<Group> groups;
  ValueRef loss_scale = nullptr;  // an object with attributes, or a dict of them; may be null
};

// Of a "...optim_states.pt". ConfigError names the file and what is wrong or not supported.
OptimizerStates read_optimizer_states(const TorchArchive& archive);

// Stage 0: `optimizer` of the model's file.
OptimizerStates read_replicated_optimizer(const TorchArchive& archive, ValueRef optimizer);

}  // namespace lockstep::checkpoint
