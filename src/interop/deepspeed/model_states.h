#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "interop/state_dict.h"
#include "interop/torch_archive.h"

namespace lockstep::interop {

struct ShapedName {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

// What a "…model_states.pt" of DeepSpeed's says. Points into the archive.
struct ModelStates {
  TensorReferences module;  // parameters and buffers in the order of the file; each name once
  std::set<std::string> buffers;
  // Of each flat group of the optimizer, the parameters in it, in their order there. None
  // where nothing is divided.
  std::vector<std::vector<ShapedName>> groups;
  std::vector<ShapedName> frozen;                              // where they are divided
  std::map<std::string, const TensorReference*> frozen_parts;  // this rank's
  std::map<std::string, std::string> shared;                   // a name without values -> its owner
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  int64_t samples = 0;
  int64_t ranks = 0;             // 0: not told
  std::string version;           // of DeepSpeed
  ValueRef optimizer = nullptr;  // null: divided, and in files of its own
  ValueRef config = nullptr;     // or null
  ValueRef schedule = nullptr;   // of the learning rate; or null
  // What the program gave to save_checkpoint, and what else is there.
  std::vector<std::pair<std::string, ValueRef>> others;

  const TensorReference* find(const std::string& name) const;  // in module; or null
};

// ConfigError names the file and what is wrong with it, or that its model is divided.
ModelStates read_model_states(const TorchArchive& archive);

}  // namespace lockstep::interop
