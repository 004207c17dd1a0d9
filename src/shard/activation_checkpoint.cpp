#include <ATen/ATen.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "shard/ambient_state.h"
#include "torch_private/autograd_node.h"

namespace lockstep {

namespace {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Gradients of parameters are outputs of this node like those of inputs: so they reach the
// accumulators in the backward that runs this node, once, and whoever listens there
// (the reducer) sees no backward inside of a backward.
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

  // The function's outputs as this node's.
  variable_list adopt(const variable_list& outputs, const torch_private::NodePtr& self) {
    variable_list adopted;
    for (size_t i = 0; i < outputs.size(); ++i) {
      // Another tensor over the same memory: it may be an input that is handed through.
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
  // Leaves with the values of the inputs: backward ends at them.
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
    const shard::RestoredState state(state_);
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

  // One for each edge.
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
  const shard::AmbientState state_;
};

size_t set_units(torch::nn::Module& module, bool enabled) {
  size_t units = 0;
  for (const auto& part : module.modules()) {
    auto* unit = dynamic_cast<shard::Unit*>(part.get());
    if (unit == nullptr) continue;
    unit->set_activation_checkpointing(enabled);
    ++units;
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
    const shard::NoAutocastCache no_cache;
    outputs = function(inputs);
  }
  return node->adopt(outputs, node);
}

}  // namespace lockstep
