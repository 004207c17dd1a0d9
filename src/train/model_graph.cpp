#include "train/model_graph.h"

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <sstream>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

using torch::nn::Module;

// "Conv2d" for "torch::nn::Conv2dImpl". A Sharded<> module has the name of the module inside.
std::string short_kind(std::string name) {
  const size_t arguments = name.find('<');
  const size_t scope = name.rfind("::", arguments);
  if (scope != std::string::npos && scope < arguments) name.erase(0, scope + 2);
  constexpr std::string_view kSharded = "ShardedImpl<";
  if (name.starts_with(kSharded)) {
    return short_kind(name.substr(kSharded.size(), name.find(',') - kSharded.size()));
  }
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::string description_of(const Module& module) {
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

class Builder {
 public:
  explicit Builder(const Shapes& shapes) : shapes_(shapes) {}

  // Adds the module and the modules below it; returns the node whose output is the module's. The order
  // of the modules inside is known only for a Sequential: one after the other. `prefix`: of the names
  // of its parameters.
  std::string add(const Module& module, const std::string& name, const std::string& prefix,
                  const std::string& input) {
    const auto children = module.named_children();
    const bool is_chain = module.as<torch::nn::SequentialImpl>() != nullptr && !children.is_empty();
    if (!is_chain) {
      GraphNode node{
          name, short_kind(module.name()), {}, description_of(module), own_parameters(module, prefix)};
      if (!input.empty()) node.inputs.push_back(input);
      graph_.push_back(std::move(node));
    }
    std::string before = is_chain ? input : "";
    for (const auto& child : children) {
      const std::string output =
          add(*child.value(), name + "/" + child.key(), prefix + child.key() + ".", before);
      if (is_chain) before = output;
    }
    return is_chain ? before : name;
  }

  Graph take() { return std::move(graph_); }

 private:
  int64_t own_parameters(const Module& module, const std::string& prefix) const {
    int64_t count = 0;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const auto sharded = shapes_.find(prefix + parameter.key());
      count += sharded != shapes_.end() ? c10::multiply_integers(sharded->second) : parameter.value().numel();
    }
    return count;
  }

  const Shapes& shapes_;
  Graph graph_;
};

}  // namespace

Graph model_graph(const Module& model, const Shapes& shapes) {
  Builder builder(shapes);
  builder.add(model, "model", "", "");
  return builder.take();
}

}  // namespace lockstep::train
