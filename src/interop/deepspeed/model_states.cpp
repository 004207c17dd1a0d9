#include "interop/deepspeed/model_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "interop/deepspeed/pickle_reading.h"

namespace lockstep::interop {
namespace {

// Counts and facts that are taken over or mean nothing elsewhere.
constexpr std::array<std::string_view, 21> kKnownKeys = {"module",
                                                         "buffer_names",
                                                         "optimizer",
                                                         "param_shapes",
                                                         "frozen_param_shapes",
                                                         "shared_params",
                                                         "frozen_param_fragments",
                                                         "lr_scheduler",
                                                         "data_sampler",
                                                         "random_ltd",
                                                         "skipped_steps",
                                                         "global_steps",
                                                         "global_samples",
                                                         "dp_world_size",
                                                         "mp_world_size",
                                                         "ds_config",
                                                         "ds_version",
                                                         "checkpoint_parallel_dimensions",
                                                         "csr_tensor_module_names",
                                                         "sparse_tensor_module_names",
                                                         "universal_checkpoint_info"};

// Each name once; the last one counts, as in Python.
TensorReferences tensors_of(const Dict& dict, std::string_view what) {
  TensorReferences result;
  std::unordered_map<std::string, size_t> places;
  for (const auto& [key, value] : dict.items) {
    const auto* tensor = value->as<TensorReference>();
    if (tensor == nullptr) continue;
    const std::string& name = name_of(key, what);
    const auto [place, is_new] = places.emplace(name, result.size());
    if (is_new) {
      result.emplace_back(name, tensor);
    } else {
      result[place->second].second = tensor;
    }
  }
  return result;
}

std::vector<ShapedName> shapes_of(ValueRef value, std::string_view what) {
  std::vector<ShapedName> result;
  std::set<std::string> names;
  for (const auto& [key, shape] : dict_of(value, what).items) {
    result.push_back({name_of(key, what), shape_of(shape, what)});
    if (!names.insert(result.back().name).second) {
      throw PickleError(fmt::format("its '{}' has '{}' twice", what, result.back().name));
    }
  }
  return result;
}

void read_parameters(const Dict& root, ModelStates& states) {
  if (ValueRef names = find_member(root, "buffer_names")) {
    for (ValueRef name : items_of(names, "buffer_names"))
      states.buffers.insert(name_of(name, "buffer_names"));
  }
  if (ValueRef groups = find_member(root, "param_shapes")) {
    // Before DeepSpeed 0.6 one dict for all.
    if (groups->as<Dict>() != nullptr) {
      states.groups.push_back(shapes_of(groups, "param_shapes"));
    } else {
      for (ValueRef group : items_of(groups, "param_shapes")) {
        states.groups.push_back(shapes_of(group, "param_shapes"));
      }
    }
  }
  if (ValueRef frozen = find_member(root, "frozen_param_shapes")) {
    states.frozen = shapes_of(frozen, "frozen_param_shapes");
  }
  if (ValueRef parts = find_member(root, "frozen_param_fragments")) {
    for (const auto& [name, tensor] :
         tensors_of(dict_of(parts, "frozen_param_fragments"), "frozen_param_fragments"))
      states.frozen_parts[name] = tensor;
  }
  if (ValueRef shared = find_member(root, "shared_params")) {
    for (const auto& [name, owner] : dict_of(shared, "shared_params").items) {
      states.shared[name_of(name, "shared_params")] = name_of(owner, "shared_params");
    }
  }
}

int64_t count(const Dict& root, std::string_view key, int64_t otherwise) {
  ValueRef value = find_member(root, key);
  const int64_t number = value == nullptr ? otherwise : integer_of(value, key);
  if (number < 0) throw PickleError(fmt::format("its '{}' is negative: {}", key, number));
  return number;
}

void check_not_divided(const Dict& root) {
  const int64_t model_ranks = count(root, "mp_world_size", 1);
  if (model_ranks > 1) {
    throw PickleError(
        fmt::format("its model is divided over {} ranks (model or tensor parallel), which is not "
                    "read here",
                    model_ranks));
  }
  for (const char* key : {"ds_autoep_layers", "autoep_layers"}) {
    if (find_member(root, key) != nullptr)
      throw PickleError("it is of a mixture of experts, which is not read here");
  }
}

ModelStates read(const Dict& root) {
  ValueRef module = find_member(root, "module");
  if (module == nullptr) {
    throw PickleError(
        "it has no 'module': it is of a pipeline parallel training, which is not read here, or no "
        "file of DeepSpeed's save_checkpoint");
  }
  check_not_divided(root);
  ModelStates states;
  states.module = tensors_of(dict_of(module, "module"), "module");
  read_parameters(root, states);
  states.steps = count(root, "global_steps", 0);
  states.skipped_steps = count(root, "skipped_steps", 0);
  states.samples = count(root, "global_samples", 0);
  states.ranks = count(root, "dp_world_size", 0);
  if (ValueRef version = find_member(root, "ds_version"); version != nullptr && version->as<std::string>()) {
    states.version = *version->as<std::string>();
  }
  states.optimizer = find_member(root, "optimizer");
  states.config = find_member(root, "ds_config");
  states.schedule = find_member(root, "lr_scheduler");
  for (const auto& [key, value] : root.items) {
    const auto* name = key->as<std::string>();
    if (name == nullptr || value->as<std::monostate>() != nullptr) continue;
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), *name) == kKnownKeys.end()) {
      states.others.emplace_back(name_of(key, "keys"), value);
    }
  }
  for (const char* key : {"data_sampler", "random_ltd"}) {
    if (ValueRef value = find_member(root, key)) states.others.emplace_back(key, value);
  }
  return states;
}

}  // namespace

int64_t ShapedName::numel() const {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;
  return result;
}

const TensorReference* ModelStates::find(const std::string& name) const {
  const auto found =
      std::find_if(module.begin(), module.end(), [&](const auto& e) { return e.first == name; });
  return found == module.end() ? nullptr : found->second;
}

ModelStates read_model_states(const TorchArchive& archive) {
  try {
    return read(dict_of(archive.root(), "content"));
  } catch (const PickleError& error) {
    archive.fail(error.what());
  }
}

}  // namespace lockstep::interop
