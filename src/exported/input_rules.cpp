#include "exported/input_rules.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

namespace lockstep::exported {
namespace {

// torch.export does not let sizes of 0 and 1 be variable and excludes them from the bounds it writes; the
// program it records takes them.
constexpr int64_t kLeastTracedSize = 2;

template <typename... Args>
[[noreturn]] void refuse_input(fmt::format_string<Args...> text, Args&&... args) {
  throw ConfigError("exported", fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

InputRules::InputRules(const Program& program) : ranges_(program.ranges) {
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::kUser || input.only_value) continue;
    Rule rule{
        .name = input.name, .is_tensor = input.tensor.has_value(), .dtype = at::kFloat, .dimensions = {}};
    if (input.tensor) {
      rule.dtype = input.tensor->dtype;
      for (const Extent& extent : input.tensor->sizes) {
        Dimension dimension{.fixed = extent.fixed, .expression = {}, .symbol = {}, .text = extent.expression};
        if (!extent.fixed) dimension.expression = SizeExpression::parse(extent.expression);
        if (dimension.expression) dimension.symbol = dimension.expression->symbol();
        rule.dimensions.push_back(std::move(dimension));
      }
    }
    rules_.push_back(std::move(rule));
  }
}

void InputRules::check_range(const std::string& name, size_t dimension, const std::string& symbol,
                             int64_t size) const {
  const auto range = ranges_.find(symbol);
  if (range == ranges_.end()) return;
  const auto& [least, most] = range->second;
  if ((!least || *least <= kLeastTracedSize || size >= *least) && (!most || size <= *most)) return;
  refuse_input("input '{}' has size {} in dimension {}, and the model was exported for {} to {}", name, size,
               dimension, least.value_or(0), most ? std::to_string(*most) : "any size");
}

void InputRules::check(const std::vector<c10::IValue>& inputs) const {
  if (inputs.size() != rules_.size()) {
    std::vector<std::string> names;
    for (const Rule& rule : rules_) names.push_back(rule.name);
    refuse_input("the model takes {} inputs ({}), got {}", rules_.size(), fmt::join(names, ", "),
                 inputs.size());
  }
  Symbols symbols;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Rule& rule = rules_[i];
    if (!rule.is_tensor) {
      if (inputs[i].isInt() || inputs[i].isDouble() || inputs[i].isBool()) continue;
      refuse_input("input '{}' must be a number", rule.name);
    }
    if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) {
      refuse_input("input '{}' must be a tensor", rule.name);
    }
    const at::Tensor& tensor = inputs[i].toTensor();
    // A model that was converted (bf16) takes inputs of its own dtype.
    if (tensor.scalar_type() != rule.dtype &&
        !(tensor.is_floating_point() && c10::isFloatingType(rule.dtype))) {
      refuse_input("input '{}' has dtype {}, and the model was exported for {}", rule.name,
                   c10::toString(tensor.scalar_type()), c10::toString(rule.dtype));
    }
    if (static_cast<size_t>(tensor.dim()) != rule.dimensions.size()) {
      refuse_input("input '{}' has the shape [{}], and the model was exported for {} dimensions", rule.name,
                   fmt::join(tensor.sizes(), ", "), rule.dimensions.size());
    }
    for (size_t d = 0; d < rule.dimensions.size(); ++d) {
      const Dimension& dimension = rule.dimensions[d];
      const int64_t size = tensor.size(static_cast<int64_t>(d));
      if (dimension.fixed && size != *dimension.fixed) {
        refuse_input(
            "input '{}' has size {} in dimension {}, and the model was exported for {}; "
            "dynamic_shapes of torch.export.export makes a size variable",
            rule.name, size, d, *dimension.fixed);
      }
      if (!dimension.symbol) continue;
      const auto [known, is_new] = symbols.try_emplace(*dimension.symbol, size);
      if (is_new) {
        check_range(rule.name, d, *dimension.symbol, size);
      } else if (known->second != size) {
        refuse_input(
            "input '{}' has size {} in dimension {}, and another input has {} where the model was "
            "exported for equal sizes",
            rule.name, size, d, known->second);
      }
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Rule& rule = rules_[i];
    for (size_t d = 0; d < rule.dimensions.size(); ++d) {
      const Dimension& dimension = rule.dimensions[d];
      if (dimension.symbol || !dimension.expression) continue;
      const auto expected = dimension.expression->value(symbols);
      const int64_t size = inputs[i].toTensor().size(static_cast<int64_t>(d));
      if (expected && *expected != size) {
        refuse_input("input '{}' has size {} in dimension {}, and the sizes of the other inputs require {}",
                     rule.name, size, d, *expected);
      }
    }
  }
}

}  // namespace lockstep::exported
