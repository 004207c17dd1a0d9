#include "train/model_graph.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <sstream>

namespace lockstep::train {
namespace {

using torch::nn::Module;

// "torch::nn::Conv2dImpl" as people know it: "Conv2d".
std::string kind_of(const Module& module) {
  std::string kind = module.name();
  const size_t arguments = kind.find('<');
  const size_t scope = kind.rfind("::", arguments);
  if (scope != std::string::npos) kind.erase(0, scope + 2);
  if (kind.ends_with("Impl")) kind.resize(kind.size() - 4);
  return kind;
}

std::string description_of(const Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

int64_t own_parameters(const Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.defined()) count += parameter.numel();
  }
  return count;
}

// Adds the module and what is below it; returns the node whose output is the module's. What
// happens inside is known of a Sequential alone: it is its parts, one after the other.
std::string add(const Module& module, const std::string& name, const std::string& input, Graph& graph) {
  const auto children = module.named_children();
  const bool is_chain = module.as<torch::nn::SequentialImpl>() != nullptr && !children.is_empty();
  if (!is_chain) {
    GraphNode node{name, kind_of(module), {}, description_of(module), own_parameters(module)};
    if (!input.empty()) node.inputs.push_back(input);
    graph.push_back(std::move(node));
  }
  std::string before = is_chain ? input : "";
  for (const auto& child : children) {
    const std::string output = add(*child.value(), name + "/" + child.key(), before, graph);
    if (is_chain) before = output;
  }
  return is_chain ? before : name;
}

}  // namespace

Graph model_graph(const Module& model) {
  Graph graph;
  add(model, "model", "", graph);
  return graph;
}

}  // namespace lockstep::train
