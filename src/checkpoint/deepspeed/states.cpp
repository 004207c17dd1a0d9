#include "checkpoint/deepspeed/states.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "checkpoint/pickle_values.h"

namespace lockstep::checkpoint {
namespace {

// Keys that are read here, or that mean nothing outside of DeepSpeed.
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

TensorReferences named_tensors_of(const Dict& dict, std::string_view what) {
  TensorReferences result = tensors_of(dict, what);
  for (const auto& [name, tensor] : result) check_name(name, what);
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
    // Before DeepSpeed 0.6: one dict for all groups.
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
         named_tensors_of(dict_of(parts, "frozen_param_fragments"), "frozen_param_fragments"))
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

void check_not_sharded(const Dict& root) {
  const int64_t model_ranks = count(root, "mp_world_size", 1);
  if (model_ranks > 1) {
    throw PickleError(
        fmt::format("its model is sharded over {} ranks (model or tensor parallel), which is not "
                    "read here",
                    model_ranks));
  }
  for (const char* key : {"ds_autoep_layers", "autoep_layers"}) {
    if (find_member(root, key) != nullptr)
      throw PickleError("it is of a mixture of experts, which is not read here");
  }
}

ModelStates read_model(const Dict& root) {
  ValueRef module = find_member(root, "module");
  if (module == nullptr) {
    throw PickleError(
        "it has no 'module': it is of a pipeline parallel training, which is not read here, or no "
        "file of DeepSpeed's save_checkpoint");
  }
  check_not_sharded(root);
  ModelStates states;
  states.module = named_tensors_of(dict_of(module, "module"), "module");
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

constexpr size_t kMaxFlats = 1'000'000;

int64_t step_of(const TorchArchive& archive, ValueRef value) {
  double number = 0;
  if (const auto* tensor = value->as<TensorReference>()) {
    const auto read = tensor->sizes.size() <= 1 ? archive.read(*tensor) : at::Tensor();
    if (!read.defined() || read.numel() != 1) throw PickleError("a 'step' of its optimizer is no number");
    number = read.to(at::kDouble).item<double>();
  } else {
    const auto plain = number_in(value);
    if (!plain) throw PickleError("a 'step' of its optimizer is no number");
    number = *plain;
  }
  if (!(number >= 0 && number < 1e15))
    throw PickleError(fmt::format("a 'step' of its optimizer is {}", number));
  return static_cast<int64_t>(number);
}

void read_state(const TorchArchive& archive, const Dict& state, OptimizerStates::Flat& flat) {
  flat.has_state = true;
  for (const auto& [key, value] : state.items) {
    const std::string& name = name_of(key, "state");
    if (name == "step") {
      flat.step = step_of(archive, value);
    } else if (const auto* tensor = value->as<TensorReference>()) {
      archive.check(*tensor);
      flat.fields[name] = tensor;
    }
  }
}

// Reads the result of torch.optim.Optimizer.state_dict().
void read_torch_state(const TorchArchive& archive, const Dict& saved, OptimizerStates& states) {
  size_t flats = 0;
  for (ValueRef value : items_of(member(saved, "param_groups"), "param_groups")) {
    const Dict& options = dict_of(value, "param_groups");
    OptimizerStates::Group& group = states.groups.emplace_back();
    group.options = &options;
    for (ValueRef index : items_of(member(options, "params"), "params")) {
      if (integer_of(index, "params") != static_cast<int64_t>(flats)) {
        throw PickleError("the parameters of its optimizer are not numbered in their order");
      }
      group.flats.push_back(flats++);
    }
  }
  if (states.flats.empty() && flats <= kMaxFlats) states.flats.resize(flats);
  if (states.flats.size() != flats) {
    throw PickleError(fmt::format("its optimizer has {} flat groups of parameters, and {} of weights", flats,
                                  states.flats.size()));
  }
  for (const auto& [key, value] : dict_of(member(saved, "state"), "state").items) {
    const int64_t index = integer_of(key, "state");
    if (index < 0 || index >= static_cast<int64_t>(flats)) {
      throw PickleError(
          fmt::format("its optimizer has a state of parameter {}, and {} parameters", index, flats));
    }
    read_state(archive, dict_of(value, "state"), states.flats[static_cast<size_t>(index)]);
  }
  // Fused optimizers of DeepSpeed have one step count for a group.
  for (const OptimizerStates::Group& group : states.groups) {
    ValueRef step = find_member(*group.options, "step");
    for (const size_t flat : group.flats) {
      if (step != nullptr && states.flats[flat].has_state && !states.flats[flat].step) {
        states.flats[flat].step = step_of(archive, step);
      }
    }
  }
}

void add_masters(const TorchArchive& archive, const std::vector<ValueRef>& tensors, OptimizerStates& states) {
  for (ValueRef value : tensors) {
    const TensorReference& tensor = tensor_of(value, "fp32 groups");
    archive.check(tensor);
    states.flats.push_back({.master = &tensor, .fields = {}, .step = {}, .has_state = false});
  }
}

int64_t partitions_of(ValueRef value) {
  int64_t most = 1;
  if (value->as<List>() == nullptr && value->as<Tuple>() == nullptr)
    return integer_of(value, "partition_count");
  for (ValueRef item : items_of(value, "partition_count")) {
    const int64_t count = integer_of(item, "partition_count");
    if (most > 1 && count != most) {
      throw PickleError(
          "its groups are sharded over different numbers of ranks (a mixture of experts), which is "
          "not read here");
    }
    most = count;
  }
  return most;
}

OptimizerStates read_sharded(const TorchArchive& archive, const Dict& root) {
  const Dict& saved = dict_of(member(root, "optimizer_state_dict"), "optimizer_state_dict");
  if (find_member(saved, "ds_zero_partition_groups") != nullptr) {
    throw PickleError(
        "its parameters are sharded over groups of ranks (MiCS, ZeRO++), which is not read here");
  }
  OptimizerStates states;
  ValueRef stage = find_member(saved, "zero_stage");
  states.stage = stage == nullptr ? 1 : integer_of(stage, "zero_stage");
  if (states.stage < 1 || states.stage > 3) {
    throw PickleError(fmt::format("its 'zero_stage' is {}, 1 to 3 are known", states.stage));
  }
  states.partitions = partitions_of(member(saved, "partition_count"));
  const char* masters = states.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  add_masters(archive, items_of(member(saved, masters), masters), states);
  ValueRef inner = find_member(saved, states.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (inner != nullptr && inner->as<Dict>() != nullptr) {
    read_torch_state(archive, *inner->as<Dict>(), states);
  }
  states.loss_scale = find_member(saved, "loss_scaler");
  return states;
}

}  // namespace

int64_t ShapedName::numel() const { return c10::multiply_integers(shape); }

const TensorReference* ModelStates::find(const std::string& name) const {
  const auto found =
      std::find_if(module.begin(), module.end(), [&](const auto& e) { return e.first == name; });
  return found == module.end() ? nullptr : found->second;
}

ModelStates read_model_states(const TorchArchive& archive) {
  try {
    return read_model(dict_of(archive.root(), "content"));
  } catch (const PickleError& error) {
    archive.fail(error.what());
  }
}

OptimizerStates read_optimizer_states(const TorchArchive& archive) {
  try {
    return read_sharded(archive, dict_of(archive.root(), "content"));
  } catch (const PickleError& error) {
    archive.fail(error.what());
  }
}

OptimizerStates read_replicated_optimizer(const TorchArchive& archive, ValueRef optimizer) {
  try {
    const Dict& saved = dict_of(optimizer, "optimizer");
    OptimizerStates states;
    ValueRef inner = find_member(saved, "optimizer_state_dict");
    if (inner == nullptr) {  // float32: `saved` is the state dict of the optimizer
      read_torch_state(archive, saved, states);
      return states;
    }
    if (find_member(saved, "fp32_groups_flat") != nullptr) {
      throw PickleError(
          "its 16-bit training has no names for its float32 weights ('fp32_groups_flat'): save it "
          "with zero_optimization.stage 1");
    }
    for (ValueRef group : items_of(member(saved, "fp32_groups"), "fp32_groups")) {
      add_masters(archive, items_of(group, "fp32_groups"), states);
    }
    read_torch_state(archive, dict_of(inner, "optimizer_state_dict"), states);
    states.loss_scale = optimizer;
    return states;
  } catch (const PickleError& error) {
    archive.fail(error.what());
  }
}

}  // namespace lockstep::checkpoint
