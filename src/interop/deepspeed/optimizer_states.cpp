#include "interop/deepspeed/optimizer_states.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "interop/deepspeed/pickle_reading.h"

namespace lockstep::interop {
namespace {

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

// What torch.optim.Optimizer.state_dict() gives.
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
  // Fused optimizers of DeepSpeed count once for a group.
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
          "its groups are divided over different numbers of ranks (a mixture of experts), which is "
          "not read here");
    }
    most = count;
  }
  return most;
}

OptimizerStates read_divided(const TorchArchive& archive, const Dict& root) {
  const Dict& saved = dict_of(member(root, "optimizer_state_dict"), "optimizer_state_dict");
  if (find_member(saved, "ds_zero_partition_groups") != nullptr) {
    throw PickleError(
        "its parameters are divided over groups of ranks (MiCS, ZeRO++), which is not read here");
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

OptimizerStates read_optimizer_states(const TorchArchive& archive) {
  try {
    return read_divided(archive, dict_of(archive.root(), "content"));
  } catch (const PickleError& error) {
    archive.fail(error.what());
  }
}

OptimizerStates read_whole_optimizer(const TorchArchive& archive, ValueRef optimizer) {
  try {
    const Dict& saved = dict_of(optimizer, "optimizer");
    OptimizerStates states;
    ValueRef inner = find_member(saved, "optimizer_state_dict");
    if (inner == nullptr) {  // float32: the optimizer's own state dict
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

}  // namespace lockstep::interop
