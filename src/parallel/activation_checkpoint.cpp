#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "torch_private/autograd_node.h"
#include "torch_private/random_state.h"

namespace lockstep {

namespace {

// What a computation depends on besides its arguments, at the time of construction: the states of the
// default random generators of the CPU and of the tensors' devices, and autocast. With it the same can
// be computed again later.
class AmbientState {
 public:
  // Undefined tensors are ignored.
  explicit AmbientState(const std::vector<at::Tensor>& tensors) : AmbientState(devices_of(tensors)) {}

 private:
  friend class RestoredState;

  struct OfDevice {
    c10::Device device;
    at::Tensor random;
    bool autocast = false;
    c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;
  };

  explicit AmbientState(const std::vector<c10::Device>& devices)
      : autocast_cache_(at::autocast::is_autocast_cache_enabled()) {
    for (const c10::Device device : devices) {
      devices_.push_back({device, torch_private::random_state(device),
                          at::autocast::is_autocast_enabled(device.type()),
                          at::autocast::get_autocast_dtype(device.type())});
    }
  }

  static std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
    std::vector<c10::Device> devices = {c10::Device(c10::DeviceType::CPU)};
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.is_meta()) continue;
      if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
        devices.push_back(tensor.device());
      }
    }
    return devices;
  }

  // The present state of the same devices.
  AmbientState now() const {
    std::vector<c10::Device> devices;
    for (const OfDevice& own : devices_) devices.push_back(own.device);
    return AmbientState(devices);
  }

  std::vector<OfDevice> devices_;
  bool autocast_cache_ = true;
};

// Restores a state during its lifetime, and afterwards the one before it. One thread.
class RestoredState {
 public:
  explicit RestoredState(const AmbientState& state) : before_(state.now()) {
    apply(state);
    // Autocast's copies of weights belong to the graph of this computation: copies from before are not
    // used in it, and its copies not after it.
    const bool is_outermost = at::autocast::increment_nesting() == 1;
    at::autocast::set_autocast_cache_enabled(is_outermost && state.autocast_cache_);
  }
  ~RestoredState() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    apply(before_);
    at::autocast::set_autocast_cache_enabled(before_.autocast_cache_);
  }
  RestoredState(const RestoredState&) = delete;
  RestoredState& operator=(const RestoredState&) = delete;

 private:
  static void apply(const AmbientState& state) {
    for (const AmbientState::OfDevice& own : state.devices_) {
      torch_private::set_random_state(own.device, own.random);
      at::autocast::set_autocast_dtype(own.device.type(), own.autocast_dtype);
      at::autocast::set_autocast_enabled(own.device.type(), own.autocast);
    }
  }

  const AmbientState before_;
};

// Autocast keeps no copies of weights during its lifetime: copies made without gradients would be used
// later where gradients must pass.
class NoAutocastCache {
 public:
  NoAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  const bool before_;
};

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Runs the function again in backward. The gradients of parameters are outputs of this node, like
// those of inputs: they reach the accumulators once, in the backward that runs this node, and the
// reducer's hooks see no backward inside a backward.
class Recompute final : public torch::autograd::Node {
 public:
  Recompute(TensorFunction function, const variable_list& inputs, variable_list parameters)
      : function_(std::move(function)), parameters_(std::move(parameters)), state_(inputs) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
      needs_gradient_.push_back(input.defined() && input.requires_grad());
      add_next_edge(needs_gradient_.back() ? torch::autograd::impl::gradient_edge(input) : Edge());
    }
    for (const at::Tensor& parameter : parameters_) {
      add_next_edge(torch::autograd::impl::gradient_edge(parameter));
    }
  }

  // Makes the function's outputs those of this node.
  variable_list adopt(const variable_list& outputs, const torch_private::NodePtr& self) {
    variable_list adopted;
    for (size_t i = 0; i < outputs.size(); ++i) {
      // A new tensor over the same memory: the output may be one of the inputs.
      adopted.push_back(outputs[i].defined() ? outputs[i].detach() : outputs[i]);
      if (!outputs[i].defined() || !torch::autograd::isDifferentiableType(outputs[i].scalar_type())) continue;
      torch::autograd::set_history(adopted.back(), self);
      outputs_.push_back(i);
    }
    return adopted;
  }

  std::string name() const override { return "lockstep::Recompute"; }

  void release_variables() override {
    inputs_.clear();
    function_ = nullptr;
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw ConfigError("shard",
                        "activation checkpointing has no gradients of gradients: switch it off for a "
                        "backward with create_graph");
    }
    if (!function_) {
      throw ConfigError("shard",
                        "a second backward over activations that were computed again: keep the graph of the "
                        "first one (retain_graph)");
    }
    const variable_list inputs = fresh_inputs();
    const variable_list outputs = run(inputs);
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const at::Tensor& output = outputs[outputs_[i]];
      if (!gradients[i].defined() || !output.defined() || !output.requires_grad()) continue;
      roots.push_back(output);
      root_gradients.push_back(gradients[i]);
    }
    return distribute(inputs, gradients_of(roots, root_gradients, inputs));
  }

 private:
  // Leaves with the values of the inputs, at which the inner backward ends.
  variable_list fresh_inputs() {
    variable_list inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const at::Tensor saved = inputs_[i].unpack();
      inputs.push_back(saved.defined() ? saved.detach().set_requires_grad(needs_gradient_[i]) : saved);
    }
    return inputs;
  }

  variable_list run(const variable_list& inputs) const {
    const at::AutoGradMode with_gradients(true);
    const RestoredState state(state_);
    return function_(inputs);
  }

  variable_list gradients_of(const variable_list& roots, const variable_list& root_gradients,
                             const variable_list& inputs) const {
    variable_list leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (needs_gradient_[i]) leaves.push_back(inputs[i]);
    }
    leaves.insert(leaves.end(), parameters_.begin(), parameters_.end());
    if (roots.empty()) return variable_list(leaves.size());
    return torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }

  // One gradient for each edge.
  variable_list distribute(const variable_list& inputs, const variable_list& gradients) const {
    variable_list result;
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      result.push_back(needs_gradient_[i] ? gradients[next++] : at::Tensor());
    }
    result.insert(result.end(), gradients.begin() + static_cast<std::ptrdiff_t>(next), gradients.end());
    return result;
  }

  TensorFunction function_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> needs_gradient_;  // of each input
  const variable_list parameters_;
  std::vector<size_t> outputs_;  // the function's output that each input of this node belongs to
  const AmbientState state_;
};

size_t set_units(torch::nn::Module& module, bool enabled) {
  size_t units = 0;
  const auto set = [&](parallel::Unit& unit) {
    unit.set_activation_checkpointing(enabled);
    ++units;
  };
  for (const auto& part : module.modules()) {
    if (auto* unit = dynamic_cast<parallel::Unit*>(part.get())) set(*unit);
    if (auto* source = dynamic_cast<parallel::UnitSource*>(part.get())) {
      for (const parallel::UnitSource::Owned& owned : source->units()) set(*owned.unit);
    }
  }
  return units;
}

}  // namespace

void set_activation_checkpointing(torch::nn::Module& module, bool enabled) {
  if (set_units(module, enabled) > 0 || !enabled) return;
  throw ConfigError("shard",
                    "activation checkpointing works by units and the model has none: wrap its blocks into "
                    "lockstep::Sharded<>");
}

std::vector<at::Tensor> recompute_in_backward(const TensorFunction& function,
                                              const std::vector<at::Tensor>& inputs,
                                              const std::vector<at::Tensor>& parameters) {
  // A tied parameter has several names and one gradient.
  variable_list trained;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      trained.push_back(parameter);
    }
  }
  const bool has_inputs = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
    return input.defined() && input.requires_grad();
  });
  if (!at::GradMode::is_enabled() || (trained.empty() && !has_inputs)) return function(inputs);
  const auto node = torch_private::make_node<Recompute>(function, inputs, std::move(trained));
  variable_list outputs;
  {
    const at::NoGradGuard no_grad;
    const NoAutocastCache no_cache;
    outputs = function(inputs);
  }
  return node->adopt(outputs, node);
}

}  // namespace lockstep
