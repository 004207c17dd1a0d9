#include "exported/input_rules.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace lockstep::exported {
namespace {

// torch.export does not let sizes of 0 and 1 be variable and excludes them from the bounds it writes; the
// program it records takes them.
constexpr int64_t kLeastTracedSize = 2;

template <typename... Args>
[[noreturn]] void refuse_input(fmt::format_string<Args...> text, Args&&... args) {
  throw ConfigError("exported", fmt::format(text, std::forward<Args>(args)...));
}

bool is_of_kind(const c10::IValue& value, NumberMeta::Kind kind) {
  switch (kind) {
    case NumberMeta::Kind::kInteger: return value.isInt();
    case NumberMeta::Kind::kReal: return value.isDouble() || value.isInt();
    case NumberMeta::Kind::kBoolean: return value.isBool();
  }
  return false;
}

const char* kind_text(NumberMeta::Kind kind) {
  switch (kind) {
    case NumberMeta::Kind::kInteger: return "an integer";
    case NumberMeta::Kind::kReal: return "a number";
    case NumberMeta::Kind::kBoolean: return "true or false";
  }
  return "";
}

// As Python writes it.
std::string constant_text(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isString()) return fmt::format("'{}'", printable(value.toStringRef()));
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  return "None";  // programs have no inputs of other kinds
}

// Whether they are equal in Python, where 2 is 2.0.
bool is_same_constant(const c10::IValue& a, const c10::IValue& b) {
  if ((a.isInt() || a.isDouble()) && (b.isInt() || b.isDouble())) {
    return a.isInt() && b.isInt() ? a.toInt() == b.toInt()
                                  : a.toScalar().toDouble() == b.toScalar().toDouble();
  }
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  return a.isNone() && b.isNone();
}

std::string range_text(const Range& range) {
  const int64_t least = range.least.value_or(0);
  return range.most ? fmt::format("{} to {}", least, *range.most) : fmt::format("{} or more", least);
}

}  // namespace

InputRules::InputRules(const Program& program) {
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::kUser) continue;
    if (input.only_value) {
      fixed_.push_back({input.name, *input.only_value});
      continue;
    }
    Rule rule{.name = input.name, .dtype = {}, .number = input.number.kind, .dimensions = {}};
    const auto add = [&](const Extent& extent, std::optional<size_t> dimension) {
      Dimension made{.fixed = extent.fixed, .expression = {}, .exported = extent.exported};
      if (!extent.fixed) {
        made.expression = SizeExpression::parse(extent.expression, symbols_);
        equations_.push_back({{rules_.size(), dimension}, *made.expression, {}});
      }
      rule.dimensions.push_back(std::move(made));
    };
    if (input.tensor) {
      rule.dtype = input.tensor->dtype;
      for (const Extent& extent : input.tensor->sizes) add(extent, rule.dimensions.size());
    } else if (input.number.extent) {
      add(*input.number.extent, std::nullopt);
    } else {
      rule.dimensions.emplace_back();
    }
    rules_.push_back(std::move(rule));
  }
  add_bounds(program);
  sizes_.resize(symbols_.count());
  order_equations();
}

// Symbols alone come first. Then each equation that has one symbol without a size gives it one, in the order
// of repeated passes over all.
void InputRules::order_equations() {
  std::stable_partition(equations_.begin(), equations_.end(),
                        [](const Equation& equation) { return equation.expression.is_symbol(); });
  std::vector<bool> known(symbols_.count());
  std::vector<size_t> unknown(equations_.size());  // how many symbols of an equation have no size
  std::vector<std::vector<size_t>> uses(symbols_.count());
  std::set<size_t> ready;
  const auto unknown_in = [&](const Equation& equation) {
    const auto& symbols = equation.expression.symbols();
    return std::find_if(symbols.begin(), symbols.end(), [&](size_t symbol) { return !known[symbol]; });
  };
  const auto note_ready = [&](size_t i) {
    const Equation& equation = equations_[i];
    if (unknown[i] == 0 || (unknown[i] == 1 && equation.expression.is_linear_in(*unknown_in(equation)))) {
      ready.insert(i);
    }
  };
  for (size_t i = 0; i < equations_.size(); ++i) {
    const auto& symbols = equations_[i].expression.symbols();
    unknown[i] = symbols.size();
    for (const size_t symbol : symbols) uses[symbol].push_back(i);
    note_ready(i);
  }
  std::vector<Equation> ordered;
  std::vector<bool> done(equations_.size());
  for (size_t next = 0; !ready.empty();) {
    auto place = ready.lower_bound(next);
    if (place == ready.end()) place = ready.begin();
    const size_t i = *place;
    ready.erase(place);
    next = i + 1;
    done[i] = true;
    Equation& equation = equations_[i];
    const auto solved = unknown_in(equation);
    if (solved != equation.expression.symbols().end()) {
      equation.solves = *solved;
      known[*solved] = true;
      for (const size_t user : uses[*solved]) {
        --unknown[user];
        if (!done[user]) note_ready(user);
      }
    }
    ordered.push_back(std::move(equation));
  }
  const auto left = std::find(done.begin(), done.end(), false);
  if (left != done.end()) {
    const Equation& equation = equations_[static_cast<size_t>(left - done.begin())];
    throw ProgramError(fmt::format("the size {} of its input '{}' does not follow from the other sizes",
                                   equation.expression.text(symbols_), rules_[equation.place.input].name));
  }
  equations_ = std::move(ordered);
}

void InputRules::add_bounds(const Program& program) {
  // Where a lower bound leaves out the sizes that are never traced, those of sums and products follow it.
  std::vector<bool> takes_one(symbols_.count());
  for (const auto& [key, range] : program.ranges) {
    const SizeExpression expression = SizeExpression::parse_infix(key, symbols_);
    takes_one.resize(symbols_.count());
    if (expression.is_symbol() && range.least && *range.least <= kLeastTracedSize) {
      takes_one[expression.symbols()[0]] = true;
    }
    bounds_.push_back({.expression = expression, .range = range, .place = {}});
  }
  std::unordered_map<std::string_view, Place> places;  // the first of each expression
  for (const Equation& equation : equations_) places.try_emplace(equation.expression.key(), equation.place);
  for (Bound& bound : bounds_) {
    const auto place = places.find(bound.expression.key());
    if (place != places.end()) bound.place = place->second;
    const auto& symbols = bound.expression.symbols();
    bound.checks_least =
        std::none_of(symbols.begin(), symbols.end(), [&](size_t symbol) { return takes_one[symbol]; });
  }
  std::stable_partition(bounds_.begin(), bounds_.end(),
                        [](const Bound& bound) { return bound.place.has_value(); });
}

std::string InputRules::described(const Place& place, int64_t size) const {
  const std::string& name = rules_[place.input].name;
  return place.dimension ? fmt::format("input '{}' has size {} in dimension {}", name, size, *place.dimension)
                         : fmt::format("input '{}' is {}", name, size);
}

void InputRules::check_kinds(const std::vector<c10::IValue>& inputs) const {
  if (inputs.size() != rules_.size()) {
    std::vector<std::string> names;
    for (const Rule& rule : rules_) names.push_back(rule.name);
    std::vector<std::string> constants;
    for (const Fixed& each : fixed_) {
      constants.push_back(fmt::format("{} = {}", each.name, constant_text(each.value)));
    }
    refuse_input("the model takes {} inputs ({}), got {}{}{}", rules_.size(), fmt::join(names, ", "),
                 inputs.size(), constants.empty() ? "" : "; its export fixed ", fmt::join(constants, ", "));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Rule& rule = rules_[i];
    if (!rule.dtype) {
      if (is_of_kind(inputs[i], rule.number)) continue;
      refuse_input("input '{}' must be {}", rule.name, kind_text(rule.number));
    }
    if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) {
      refuse_input("input '{}' must be a tensor", rule.name);
    }
    const at::Tensor& tensor = inputs[i].toTensor();
    // A model that was converted (bf16) takes inputs of its own dtype.
    if (tensor.scalar_type() != *rule.dtype &&
        !(tensor.is_floating_point() && c10::isFloatingType(*rule.dtype))) {
      refuse_input("input '{}' has dtype {}, and the model was exported for {}", rule.name,
                   c10::toString(tensor.scalar_type()), c10::toString(*rule.dtype));
    }
    if (static_cast<size_t>(tensor.dim()) != rule.dimensions.size()) {
      refuse_input("input '{}' has the shape [{}], and the model was exported for {} dimensions", rule.name,
                   fmt::join(tensor.sizes(), ", "), rule.dimensions.size());
    }
    for (size_t d = 0; d < rule.dimensions.size(); ++d) {
      const std::optional<int64_t>& fixed = rule.dimensions[d].fixed;
      const int64_t size = tensor.size(static_cast<int64_t>(d));
      if (!fixed || size == *fixed) continue;
      refuse_input(
          "{}, and the model was exported for {}; dynamic_shapes of torch.export.export makes a size "
          "variable",
          described({i, d}, size), *fixed);
    }
  }
}

void InputRules::check_equation(const Equation& equation, int64_t size) {
  if (equation.solves) {
    sizes_[*equation.solves] = equation.expression.solve(*equation.solves, size, sizes_);
    if (sizes_[*equation.solves]) return;
    refuse_input("{}, and the model was exported for sizes that are {}", described(equation.place, size),
                 equation.expression.text(symbols_));
  }
  const std::optional<int64_t> expected = equation.expression.value(sizes_);
  if (expected == size) return;
  if (equation.expression.is_symbol()) {
    refuse_input("{}, and another input has {} where the model was exported for equal sizes",
                 described(equation.place, size), *expected);
  }
  if (!expected) {
    refuse_input("{}, and the sizes of the other inputs give no integer for {}",
                 described(equation.place, size), equation.expression.text(symbols_));
  }
  refuse_input("{}, and the sizes of the other inputs require {}", described(equation.place, size),
               *expected);
}

void InputRules::check_bound(const Bound& bound) const {
  const std::optional<int64_t> size = bound.expression.value(sizes_);
  // A symbol of the program's own, such as the number of nonzero elements.
  if (!size) return;
  const auto& [least, most] = bound.range;
  if ((!bound.checks_least || !least || *size >= *least) && (!most || *size <= *most)) return;
  if (bound.place) {
    refuse_input("{}, and the model was exported for {}", described(*bound.place, *size),
                 range_text(bound.range));
  }
  refuse_input("the sizes of the inputs give {} = {}, and the model was exported for {}",
               bound.expression.text(symbols_), *size, range_text(bound.range));
}

void InputRules::check(const std::vector<c10::IValue>& inputs) {
  check_kinds(inputs);
  std::fill(sizes_.begin(), sizes_.end(), std::nullopt);
  for (const Equation& equation : equations_) {
    const c10::IValue& input = inputs[equation.place.input];
    check_equation(equation, equation.place.dimension
                                 ? input.toTensor().size(static_cast<int64_t>(*equation.place.dimension))
                                 : input.toInt());
  }
  for (const Bound& bound : bounds_) check_bound(bound);
}

bool InputRules::is_fixed(const std::string& name, const c10::IValue& value) const {
  const auto found =
      std::find_if(fixed_.begin(), fixed_.end(), [&](const Fixed& each) { return each.name == name; });
  if (found == fixed_.end()) return false;
  if (is_same_constant(value, found->value)) return true;
  refuse_input(
      "input '{}' must be {} or left out: the model was exported for this value alone; export it again "
      "for another",
      name, constant_text(found->value));
}

const InputRules::Dimension& InputRules::dimension_at(const Place& place) const {
  return rules_[place.input].dimensions[place.dimension.value_or(0)];
}

std::vector<c10::IValue> InputRules::example(std::optional<int64_t> batch,
                                             std::optional<at::ScalarType> converted) const {
  SymbolSizes sizes(symbols_.count());
  const auto first = std::find_if(rules_.begin(), rules_.end(),
                                  [](const Rule& rule) { return rule.dtype && !rule.dimensions.empty(); });
  if (batch && first != rules_.end()) {
    const Dimension& dimension = first->dimensions[0];
    if (dimension.fixed && dimension.fixed != batch) {
      refuse_input(
          "input '{}' has size {} in dimension 0 and cannot have {}: dynamic_shapes of torch.export.export "
          "makes a size variable",
          first->name, *dimension.fixed, *batch);
    }
    if (dimension.expression && dimension.expression->symbols().size() == 1) {
      const size_t symbol = dimension.expression->symbols()[0];
      if (dimension.expression->is_linear_in(symbol)) {
        sizes[symbol] = dimension.expression->solve(symbol, *batch, sizes);
      }
    }
  }
  for (const Equation& equation : equations_) {
    const std::optional<int64_t>& exported = dimension_at(equation.place).exported;
    if (!equation.solves || sizes[*equation.solves] || !exported) continue;
    sizes[*equation.solves] = equation.expression.solve(*equation.solves, *exported, sizes);
  }
  std::vector<c10::IValue> inputs;
  for (const Rule& rule : rules_) {
    std::vector<int64_t> shape;
    for (const Dimension& dimension : rule.dimensions) {
      const std::optional<int64_t> size = dimension.fixed        ? dimension.fixed
                                          : dimension.expression ? dimension.expression->value(sizes)
                                                                 : std::optional<int64_t>(1);
      if (!size || *size < 0)
        refuse_input("the size of the input '{}' in the export is not known", rule.name);
      shape.push_back(*size);
    }
    if (rule.dtype) {
      const bool converts = converted && c10::isFloatingType(*rule.dtype);
      inputs.emplace_back(at::zeros(shape, converts ? *converted : *rule.dtype));
      continue;
    }
    switch (rule.number) {
      case NumberMeta::Kind::kInteger: inputs.emplace_back(shape[0]); break;
      case NumberMeta::Kind::kReal: inputs.emplace_back(1.0); break;
      case NumberMeta::Kind::kBoolean: inputs.emplace_back(true); break;
    }
  }
  return inputs;
}

std::string InputRules::sizes_text(size_t input) const {
  const Rule& rule = rules_[input];
  std::vector<std::string> sizes;
  for (const Dimension& dimension : rule.dimensions) {
    const auto bound = std::find_if(bounds_.begin(), bounds_.end(), [&](const Bound& each) {
      return dimension.expression && each.expression.same_as(*dimension.expression);
    });
    if (dimension.fixed) {
      sizes.push_back(std::to_string(*dimension.fixed));
    } else if (bound != bounds_.end()) {
      sizes.push_back(range_text(bound->range));
    } else {
      sizes.push_back(dimension.expression ? dimension.expression->text(symbols_) : "any");
    }
  }
  return rule.dtype ? fmt::format("[{}]", fmt::join(sizes, ", ")) : sizes[0];
}

}  // namespace lockstep::exported
