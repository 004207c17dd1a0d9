#include "exported/executable.h"

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "nn/attention.h"

namespace lockstep::exported {
namespace {

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
constexpr std::string_view kGradientRegion = "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr size_t kMaskOfAttention = 3;  // the argument of aten::scaled_dot_product_attention
constexpr std::string_view kAutocastRegion = "torch.ops.higher_order.wrap_with_autocast";

bool is_region(const Node& node) { return node.target == kGradientRegion || node.target == kAutocastRegion; }

std::string place_of(const Node& node) {
  return node.python_line.empty() ? node.target : fmt::format("{} at {}", node.target, node.python_line);
}

template <typename... Args>
[[noreturn]] void refuse_node(const Node& node, fmt::format_string<Args...> text, Args&&... args) {
  throw ProgramError(
      fmt::format("its operator {}: {}", place_of(node), fmt::format(text, std::forward<Args>(args)...)));
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble();
}

// A number where an operator takes a tensor: its dtype then gives way to that of tensors, as in Python.
at::Tensor number_as_tensor(const c10::IValue& value) {
  at::Tensor tensor = c10::scalar_to_tensor(value.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// The constant as a value of this type; nullopt: it is of another type.
std::optional<c10::IValue> constant_as(const c10::IValue& value, const c10::Type& wanted) {
  switch (wanted.kind()) {
    case c10::TypeKind::OptionalType:
      if (value.isNone()) return value;
      return constant_as(value, *wanted.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::TensorType:
      if (is_number(value)) return number_as_tensor(value);
      return std::nullopt;
    case c10::TypeKind::NumberType: return is_number(value) ? std::optional(value) : std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.isInt()) return value;
      if (value.isBool()) return c10::IValue(static_cast<int64_t>(value.toBool()));
      return std::nullopt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      if (value.isDouble()) return value;
      if (value.isInt()) return c10::IValue(static_cast<double>(value.toInt()));
      return std::nullopt;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return value.isBool() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::StringType: return value.isString() ? std::optional(value) : std::nullopt;
    default: return std::nullopt;
  }
}

// The device type of "cuda" or "cuda:1"; nullopt: one without autocast.
std::optional<c10::DeviceType> autocast_device(const std::string& text) {
  try {
    const c10::DeviceType type = c10::Device(text).type();
    return at::autocast::is_autocast_available(type) ? std::optional(type) : std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// Whether the module that draws with node `index` also divides by p. Stochastic depth does so if it keeps the
// mean: timm's has an option not to.
bool divides_by(const Graph& graph, size_t index, double p) {
  const std::string& module = graph.nodes[index].module;
  size_t begin = index;
  while (begin > 0 && graph.nodes[begin - 1].module == module) --begin;
  for (size_t i = begin; i < graph.nodes.size() && graph.nodes[i].module == module; ++i) {
    const Node& node = graph.nodes[i];
    if (node.inputs.size() < 2 || node.inputs[1].kind != Argument::Kind::kConstant) continue;
    const c10::IValue& value = node.inputs[1].constant;
    if (!value.isDouble()) continue;
    if (node.target.starts_with("torch.ops.aten.div") && value.toDouble() == p) return true;
    if (node.target.starts_with("torch.ops.aten.mul") && value.toDouble() == 1 / p) return true;
  }
  return false;
}

// Restores autocast as it was before a region, as Python's torch.autocast does.
class AutocastRegion {
 public:
  AutocastRegion(c10::DeviceType device, const c10::IValue& dtype, bool enabled, bool cache)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        had_dtype_(at::autocast::get_autocast_dtype(device)),
        had_cache_(at::autocast::is_autocast_cache_enabled()) {
    if (dtype.isInt()) {
      at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(dtype.toInt()));
    }
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_cache_enabled(cache);
    at::autocast::increment_nesting();
  }
  ~AutocastRegion() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(had_cache_);
    at::autocast::set_autocast_dtype(device_, had_dtype_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
  }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  at::ScalarType had_dtype_;
  bool had_cache_;
};

}  // namespace

// --- construction ---

Executable::Executable(size_t values)
    : roots_(values), trained_(values), differentiable_(values, true), fixed_(values), counters_(values) {
  for (size_t i = 0; i < values; ++i) roots_[i] = static_cast<ValueId>(i);
}

void Executable::describe_inputs(const Program& program) {
  for (const Input& input : program.inputs) {
    if (input.kind == Input::Kind::kUser && !input.only_value) user_inputs_.push_back(input.value);
    if (input.kind == Input::Kind::kBuffer && input.name.ends_with("num_batches_tracked")) {
      counters_[input.value] = true;
    }
    if (input.kind == Input::Kind::kParameter) trained_[input.value] = input.tensor->requires_grad;
  }
  if (program.differentiable.size() == differentiable_.size()) differentiable_ = program.differentiable;
}

Executable::Executable(const Program& program, Cuts cuts) : Executable(program.values) {
  program_ = &program;
  cuts_ = std::move(cuts);
  cuts_.shard.resize(program.calls.size());
  cuts_.recompute.resize(program.calls.size());
  describe_inputs(program);
  add_graph(program.graph);
  for (const Output& output : program.outputs) {
    if (output.kind == Output::Kind::kUser) {
      user_outputs_.push_back(output.value);
    } else {
      mutations_.emplace_back(output.value.value, output.changed);
    }
  }
  find_last_uses();
  if (!segments_.empty()) describe_segments();
  program_ = nullptr;
}

ValueId Executable::root(ValueId value) const {
  while (roots_[value] != value) value = roots_[value];
  return value;
}

void Executable::add_graph(const Graph& graph) {
  add_nodes(graph, cuts_of(graph.nodes, cuts_), 0, graph.nodes.size(), 0);
}

void Executable::add_node_of(const Graph& graph, size_t index) {
  const size_t step = steps_.size();
  add_node(graph.nodes[index]);
  if (step == steps_.size() || !steps_[step].evaluation_fill) return;
  const double p = steps_[step].arguments[1].toDouble();
  steps_[step].evaluation_fill = p > 0 && divides_by(graph, index, p) ? p : 1;
}

void Executable::add_node(const Node& node) {
  if (is_assumption(node.target)) return;
  if (is_region(node)) return add_region(node);
  if (const NumberFunction function = number_function(node.target)) return add_numbers(node, function);
  if (node.target.starts_with(kHigherOrder)) {
    refuse_node(node,
                "it is a higher-order operator, of which only regions without gradients and of autocast "
                "are supported");
  }
  const auto name = operator_name(node.target);
  if (!name) refuse_node(node, "it is not supported");
  if (const auto reason = refusal_of(*name)) refuse_node(node, "it is not executed, because {}", *reason);
  const auto operation = c10::Dispatcher::singleton().findSchema({name->name, name->overload});
  if (!operation) refuse_node(node, "this LibTorch ({}) does not have it", TORCH_VERSION);
  add_operator(node, *name, *operation);
}

void Executable::add_region(const Node& node) {
  const bool is_gradient = node.target == kGradientRegion;
  const size_t options = is_gradient ? 1 : 4;
  if (node.inputs.size() <= options || node.inputs[options].kind != Argument::Kind::kGraph) {
    refuse_node(node, "its arguments have another form");
  }
  Step step;
  step.kind = is_gradient ? Step::Kind::kGradientRegion : Step::Kind::kAutocastRegion;
  step.where = place_of(node);
  for (size_t i = 0; i < options; ++i) {
    if (node.inputs[i].kind != Argument::Kind::kConstant) refuse_node(node, "its options are not constants");
    step.arguments.push_back(node.inputs[i].constant);
  }
  const auto& values = step.arguments;
  const bool well_typed = is_gradient ? values[0].isBool()
                                      : values[0].isString() && (values[1].isNone() || values[1].isInt()) &&
                                            values[2].isBool() && (values[3].isBool() || values[3].isNone());
  if (!well_typed) refuse_node(node, "its options have other types");
  if (!is_gradient) {
    const auto device = autocast_device(values[0].toStringRef());
    if (!device)
      refuse_node(node, "this LibTorch has no autocast for '{}'", printable(values[0].toStringRef()));
    step.autocast_device = *device;
  }
  const Graph& inner = *node.inputs[options].graph;
  if (inner.inputs.size() != node.inputs.size() - options - 1) {
    refuse_node(node, "its region takes {} values and gets {}", inner.inputs.size(),
                node.inputs.size() - options - 1);
  }
  for (size_t i = 0; i < inner.inputs.size(); ++i) {
    const Argument& given = node.inputs[options + 1 + i];
    if (given.kind == Argument::Kind::kValue) {
      roots_[inner.inputs[i]] = root(given.value);
    } else if (given.kind == Argument::Kind::kConstant) {
      fixed_[inner.inputs[i]] = given.constant;
    } else {
      refuse_node(node, "its region takes a list");
    }
  }
  const size_t index = steps_.size();
  steps_.push_back(std::move(step));
  const bool computed = computes_gradients_;
  if (is_gradient) computes_gradients_ = node.inputs[0].constant.toBool();
  add_graph(inner);
  computes_gradients_ = computed;
  steps_[index].region_end = steps_.size();
  std::vector<ValueId> results;
  for (const auto& output : node.outputs) results.insert(results.end(), output.begin(), output.end());
  if (results.size() != inner.outputs.size()) {
    refuse_node(node, "its region has {} results, and {} are used", inner.outputs.size(), results.size());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (inner.outputs[i].kind != Argument::Kind::kValue) refuse_node(node, "its region returns a constant");
    roots_[results[i]] = root(inner.outputs[i].value);
  }
}

void Executable::add_numbers(const Node& node, NumberFunction function) {
  Step step;
  step.kind = Step::Kind::kNumbers;
  step.function = function;
  step.outputs = node.outputs;
  step.where = place_of(node);
  if (step.outputs.size() > 1 || (step.outputs.size() == 1 && step.outputs[0].size() > 1)) {
    refuse_node(node, "it has more than one result");
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Argument& given = node.inputs[i];
    step.arguments.emplace_back();
    if (given.kind == Argument::Kind::kConstant) {
      step.arguments[i] = given.constant;
    } else if (given.kind == Argument::Kind::kValue) {
      step.uses.push_back({.argument = static_cast<uint32_t>(i), .value = root(given.value)});
    } else {
      refuse_node(node, "it takes numbers alone");
    }
  }
  steps_.push_back(std::move(step));
}

Executable::Use Executable::use_of(size_t argument, ValueId value, const c10::Type& wanted) const {
  const c10::Type* type = &wanted;
  if (type->kind() == c10::TypeKind::OptionalType) {
    type = type->expectRef<c10::OptionalType>().getElementType().get();
  }
  const bool is_real = type->kind() == c10::TypeKind::FloatType;
  const bool is_tensor = type->kind() == c10::TypeKind::TensorType;
  return {.argument = static_cast<uint32_t>(argument),
          .value = root(value),
          .convert = is_real     ? Convert::kReal
                     : is_tensor ? Convert::kTensor
                                 : Convert::kNone};
}

void Executable::add_list(Step& step, const Argument& given, const c10::TypePtr& element) {
  c10::impl::GenericList list(element);
  ListUse uses{.argument = static_cast<uint32_t>(step.arguments.size()), .elements = {}};
  for (size_t i = 0; i < given.elements.size(); ++i) {
    const Argument& each = given.elements[i];
    if (each.kind == Argument::Kind::kValue) {
      uses.elements.push_back(use_of(i, each.value, *element));
      const bool is_tensor = element->kind() == c10::TypeKind::TensorType;
      list.push_back(is_tensor ? c10::IValue(at::Tensor()) : c10::IValue(int64_t{0}));
      continue;
    }
    const auto value = constant_as(each.constant, *element);
    if (!value) {
      throw ProgramError(
          fmt::format("argument '{}' is a list of another type than {}", given.name, element->str()));
    }
    list.push_back(*value);
  }
  step.arguments.emplace_back(std::move(list));
  if (!uses.elements.empty()) step.lists.push_back(std::move(uses));
}

void Executable::add_argument(Step& step, const Argument& given, const c10::Argument& wanted) {
  const auto fail = [&](std::string_view got) {
    throw ProgramError(
        fmt::format("argument '{}' takes {}, and the file has {}", wanted.name(), wanted.type()->str(), got));
  };
  c10::TypePtr type = wanted.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const size_t index = step.arguments.size();
  switch (given.kind) {
    case Argument::Kind::kValue:
      step.arguments.emplace_back();
      step.uses.push_back(use_of(index, given.value, *type));
      return;
    case Argument::Kind::kDevice:
      if (type->kind() != c10::TypeKind::DeviceObjType) fail("a device");
      step.arguments.emplace_back(c10::Device(at::kCPU));
      devices_.push_back({steps_.size(), index});
      return;
    case Argument::Kind::kList: {
      const auto list = type->cast<c10::ListType>();
      if (!list) fail("a list");
      add_list(step, given, list->getElementType());
      return;
    }
    case Argument::Kind::kConstant: {
      // One number for all dimensions: kernel_size = 3.
      const auto list = type->cast<c10::ListType>();
      if (list && wanted.N() && is_number(given.constant)) {
        Argument repeated;
        repeated.name = given.name;
        repeated.elements.assign(static_cast<size_t>(*wanted.N()), given);
        add_list(step, repeated, list->getElementType());
        return;
      }
      const auto value = constant_as(given.constant, *wanted.type());
      if (!value) fail(fmt::format("a value of the type {}", given.constant.tagKind()));
      step.arguments.push_back(*value);
      return;
    }
    case Argument::Kind::kGraph: fail("a region");
  }
}

void Executable::add_switch(const Node& node, const OperatorName& name, const c10::FunctionSchema& schema) {
  if (only_evaluates(name)) ++frozen_switches_;
  const auto found = evaluation_switch(name);
  if (!found) return;
  const auto index = schema.argumentIndexWithName(std::string(found->argument));
  if (!index) return;
  const Step& step = steps_.back();
  // Without running statistics a batch norm uses those of the batch in evaluation too.
  const auto is_value = [&](int argument) {
    return std::any_of(step.uses.begin(), step.uses.end(),
                       [&](const Use& use) { return use.argument == static_cast<uint32_t>(argument); });
  };
  const auto mean = schema.argumentIndexWithName("running_mean");
  const bool is_norm = name.name.find("_norm") != std::string::npos;
  if (is_norm && (!mean || !is_value(*mean))) return;
  if (is_value(*index)) refuse_node(node, "argument '{}' is no constant", found->argument);
  const auto argument = static_cast<size_t>(*index);
  const c10::IValue& value = step.arguments[argument];
  // native_dropout is on without its argument.
  if (value.isNone()) {
    switches_.push_back({steps_.size() - 1, argument, value, found->value});
    return;
  }
  if (value == found->value) {
    if (value.isBool()) ++frozen_switches_;
    return;
  }
  switches_.push_back({steps_.size() - 1, argument, value, found->value});
}

void Executable::add_operator(const Node& node, const OperatorName& name,
                              const c10::OperatorHandle& operation) {
  const c10::FunctionSchema& schema = operation.schema();
  Step step;
  step.operation = operation;
  step.where = place_of(node);
  step.module = node.module;
  step.outputs = node.outputs;
  size_t used = 0;
  for (const c10::Argument& wanted : schema.arguments()) {
    const auto given = std::find_if(node.inputs.begin(), node.inputs.end(),
                                    [&](const Argument& argument) { return argument.name == wanted.name(); });
    if (given == node.inputs.end()) {
      if (!wanted.default_value()) {
        refuse_node(node, "another schema in this LibTorch, where it has the argument '{}'", wanted.name());
      }
      step.arguments.push_back(*wanted.default_value());
      continue;
    }
    ++used;
    const bool is_false =
        given->kind == Argument::Kind::kConstant && given->constant.isBool() && !given->constant.toBool();
    if (name.space == "aten" && wanted.name() == "unsafe" && !is_false) {
      refuse_node(node, "it is not executed, because with 'unsafe' it does not check its indices");
    }
    try {
      add_argument(step, *given, wanted);
    } catch (const ProgramError& error) {
      refuse_node(node, "{}", error.what());
    }
  }
  if (used != node.inputs.size()) {
    for (const Argument& given : node.inputs) {
      if (!schema.argumentIndexWithName(given.name)) {
        refuse_node(node, "another schema in this LibTorch, without the argument '{}'", given.name);
      }
    }
    refuse_node(node, "an argument is given twice");
  }
  if (step.outputs.size() > schema.returns().size()) {
    refuse_node(node, "it has {} results, and the file has {}", schema.returns().size(), step.outputs.size());
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const bool is_list = schema.returns()[i].type()->kind() == c10::TypeKind::ListType;
    if (!is_list && step.outputs[i].size() > 1) refuse_node(node, "its result {} is no list", i);
  }
  step.check = argument_check(name);
  step.is_attention = name.name == "aten::scaled_dot_product_attention";
  note_gradient(node, name, operation);
  const bool adds_one = name.name == "aten::add_" || name.name == "aten::add";
  step.only_in_training =
      adds_one && !step.uses.empty() && step.uses[0].argument == 0 && counters_[step.uses[0].value];
  if (draws_always(name)) {
    const bool is_stochastic_depth =
        node.module_class.ends_with("StochasticDepth") || node.module_class.ends_with("DropPath");
    const bool is_bernoulli = name.name == "aten::bernoulli_" || name.name == "aten::bernoulli";
    if (is_stochastic_depth && is_bernoulli && step.arguments.size() > 1 && step.arguments[1].isDouble()) {
      step.evaluation_fill = 1;
    }
    if (!step.evaluation_fill && always_random_.empty()) always_random_ = step.where;
  }
  steps_.push_back(std::move(step));
  add_switch(node, name, schema);
}

// Notes an operator through which no gradients pass, and which of its results have gradients of parameters.
void Executable::note_gradient(const Node& node, const OperatorName& name,
                               const c10::OperatorHandle& operation) {
  bool is_trained = false;
  const auto visit = [&](const auto& self, const Argument& argument) -> void {
    if (argument.kind == Argument::Kind::kValue && trained_[root(argument.value)]) is_trained = true;
    for (const Argument& element : argument.elements) self(self, element);
  };
  for (const Argument& argument : node.inputs) visit(visit, argument);
  is_trained = is_trained && computes_gradients_ && name.name != "aten::detach";
  bool any_trained = false;
  for (const auto& output : node.outputs) {
    for (const ValueId value : output) {
      trained_[value] = is_trained && differentiable_[value];
      any_trained = any_trained || trained_[value];
    }
  }
  // An operator in place changes its first argument.
  if (any_trained && name.name.ends_with('_') && !node.inputs.empty() &&
      node.inputs[0].kind == Argument::Kind::kValue) {
    trained_[root(node.inputs[0].value)] = true;
  }
  if ((name.space != "aten" || any_trained) && !has_gradient(operation)) {
    without_gradient_.push_back(place_of(node));
  }
}

void Executable::find_last_uses() {
  constexpr size_t kNever = SIZE_MAX;
  std::vector<size_t> last(roots_.size(), kNever);
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (const Use& use : steps_[i].uses) last[use.value] = i;
    for (const ListUse& list : steps_[i].lists) {
      for (const Use& use : list.elements) last[use.value] = i;
    }
  }
  std::vector<bool> kept(roots_.size());
  const auto keep = [&](const auto& self, const Argument& output) -> void {
    if (output.kind == Argument::Kind::kValue) kept[root(output.value)] = true;
    for (const Argument& element : output.elements) self(self, element);
  };
  for (const Argument& output : user_outputs_) keep(keep, output);
  for (auto& [value, changed] : mutations_) {
    value = root(value);
    kept[value] = true;
    kept[changed] = true;
  }
  // Parameters and the like: what is defined by no step.
  std::vector<bool> defined(roots_.size());
  for (const ValueId input : user_inputs_) defined[input] = true;
  for (Step& step : steps_) {
    for (auto& output : step.outputs) {
      for (const ValueId value : output) {
        defined[value] = true;
        if (last[value] == kNever && !kept[value]) step.unused.push_back(value);
      }
    }
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    // Within a step the last use is the one that is read last: the arguments, then the lists.
    const auto mark = [&](Use& use) {
      if (last[use.value] != i || kept[use.value] || !defined[use.value]) return;
      use.is_last = true;
      last[use.value] = kNever;
    };
    for (auto list = steps_[i].lists.rbegin(); list != steps_[i].lists.rend(); ++list) {
      for (auto use = list->elements.rbegin(); use != list->elements.rend(); ++use) mark(*use);
    }
    for (auto use = steps_[i].uses.rbegin(); use != steps_[i].uses.rend(); ++use) mark(*use);
  }
}

void Executable::bind(ValueId value, at::Tensor tensor) {
  fixed_[value] = std::move(tensor);
  spare_frames_.clear();
}

// --- a run ---

void Executable::prepare(bool training, c10::Device device) {
  if (training_ != training) {
    for (const Switch& each : switches_) {
      steps_[each.step].arguments[each.argument] = training ? each.training : each.evaluation;
    }
    training_ = training;
  }
  if (device_ != device) {
    for (const DeviceArgument& each : devices_) steps_[each.step].arguments[each.argument] = device;
    device_ = device;
  }
}

void Executable::push_arguments(const Step& step, Frame& frame) const {
  frame.stack.assign(step.arguments.begin(), step.arguments.end());
  const auto converted = [](c10::IValue value, Convert convert) {
    if (convert == Convert::kReal && value.isInt()) return c10::IValue(static_cast<double>(value.toInt()));
    if (convert == Convert::kTensor && is_number(value)) return c10::IValue(number_as_tensor(value));
    return value;
  };
  const auto take = [&](const Use& use) {
    c10::IValue& value = frame.values[use.value];
    c10::IValue taken = use.is_last ? std::move(value) : value;
    return use.convert == Convert::kNone ? taken : converted(std::move(taken), use.convert);
  };
  for (const Use& use : step.uses) frame.stack[use.argument] = take(use);
  for (const ListUse& list : step.lists) {
    auto elements = frame.stack[list.argument].toList();
    for (const Use& use : list.elements) elements.set(use.argument, take(use));
  }
}

void Executable::run_step(const Step& step, Frame& frame) const {
  push_arguments(step, frame);
  auto& stack = frame.stack;
  if (step.kind == Step::Kind::kNumbers) {
    c10::IValue result = step.function(stack);
    stack.clear();
    if (!step.outputs.empty()) stack.push_back(std::move(result));
  } else if (step.only_in_training && !*training_) {
    stack.resize(1);
  } else if (step.evaluation_fill && !*training_) {
    const bool in_place = step.operation->operator_name().name.ends_with('_');
    const at::Tensor& drawn = stack[0].toTensor();
    if (in_place) {
      drawn.fill_(*step.evaluation_fill);
    } else {
      stack[0] = at::full_like(drawn, *step.evaluation_fill);
    }
    stack.resize(1);
  } else {
    if (step.check != nullptr) step.check(stack);
    std::optional<nn::CudnnFirst> cudnn_first;
    // Without a mask, as nn::attention(): only such calls were compared with other kernels.
    if (step.is_attention && stack[kMaskOfAttention].isNone()) cudnn_first.emplace(*device_);
    {
      // Profilers see the module of Python as a scope of the user.
      std::optional<at::RecordFunction> scope;
      if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
        scope.emplace(std::move(*callbacks));
        scope->before(step.module);
      }
      step.operation->callBoxed(stack);
    }
    // The list outlives the step: it must not keep the tensors alive.
    for (const ListUse& list : step.lists) {
      if (list.elements.empty()) continue;
      auto elements = step.arguments[list.argument].toList();
      for (const Use& use : list.elements) {
        if (elements.get(use.argument).isTensor()) elements.set(use.argument, at::Tensor());
      }
    }
  }
  for (size_t i = 0; i < step.outputs.size() && i < stack.size(); ++i) {
    const auto& values = step.outputs[i];
    if (values.empty()) continue;
    if (!stack[i].isList()) {
      frame.values[values[0]] = std::move(stack[i]);
      continue;
    }
    const auto list = stack[i].toListRef();
    if (list.size() != values.size()) {
      throw ProgramError(fmt::format("it returned {} tensors instead of {}", list.size(), values.size()));
    }
    for (size_t j = 0; j < values.size(); ++j) frame.values[values[j]] = list[j];
  }
  stack.clear();
  for (const ValueId value : step.unused) frame.values[value] = c10::IValue();
}

void Executable::run_region(size_t index, Frame& frame) {
  const Step& step = steps_[index];
  if (step.kind == Step::Kind::kSegment) return run_segment(step.segment, frame);
  if (step.kind == Step::Kind::kGradientRegion) {
    const at::AutoGradMode mode(step.arguments[0].toBool());
    run_steps(index + 1, step.region_end, frame);
    return;
  }
  const c10::IValue& caches = step.arguments[3];
  const bool cache = caches.isNone() ? at::autocast::is_autocast_cache_enabled() : caches.toBool();
  const bool enables = step.arguments[2].toBool();
  const AutocastRegion region(step.autocast_device, step.arguments[1], enables, cache);
  // autocast(x.device.type, enabled=False) protects a computation on any device, and the file has only the
  // device of the export.
  std::optional<AutocastRegion> also;
  if (!enables && device_->type() != step.autocast_device &&
      at::autocast::is_autocast_available(device_->type())) {
    also.emplace(device_->type(), c10::IValue(), false, cache);
  }
  run_steps(index + 1, step.region_end, frame);
}

void Executable::run_steps(size_t begin, size_t end, Frame& frame) {
  size_t i = begin;
  try {
    while (i < end) {
      const Step& step = steps_[i];
      if (step.region_end != 0) {
        run_region(i, frame);
        i = step.region_end;
      } else {
        run_step(step, frame);
        ++i;
      }
    }
  } catch (c10::Error& error) {
    // For a step in a region, the call that ran the region has added it.
    if (steps_[i].region_end == 0) error.add_context("in " + steps_[i].where);
    throw;
  } catch (const ProgramError& error) {
    throw ConfigError("exported", fmt::format("{}: {}", steps_[i].where, error.what()));
  }
}

c10::IValue Executable::result(const Argument& output, const Frame& frame) const {
  if (output.kind == Argument::Kind::kValue) return frame.values[root(output.value)];
  if (output.kind != Argument::Kind::kList) return output.constant;
  c10::impl::GenericList list(c10::AnyType::get());
  for (const Argument& element : output.elements) list.push_back(result(element, frame));
  return list;
}

Executable::Frame Executable::take_frame() {
  Frame frame;
  if (spare_frames_.empty()) {
    frame.values = fixed_;
    return frame;
  }
  frame = std::move(spare_frames_.back());
  spare_frames_.pop_back();
  return frame;
}

void Executable::run(const std::vector<c10::IValue>& inputs, bool training, c10::Device device,
                     std::vector<c10::IValue>& outputs) {
  prepare(training, device);
  Frame frame = take_frame();
  for (size_t i = 0; i < user_inputs_.size(); ++i) frame.values[user_inputs_[i]] = inputs.at(i);
  // The program computes with the old content, which backward may need after the new one is written.
  frame.changed.resize(mutations_.size());
  for (size_t i = 0; i < mutations_.size(); ++i) {
    c10::IValue& value = frame.values[mutations_[i].second];
    frame.changed[i] = value.toTensor();
    if (at::GradMode::is_enabled()) value = frame.changed[i].clone();
  }
  run_steps(0, steps_.size(), frame);
  for (size_t i = 0; i < mutations_.size(); ++i) {
    const auto& [value, changed] = mutations_[i];
    const at::Tensor target = std::move(frame.changed[i]);
    const at::Tensor& source = frame.values[value].toTensor();
    if (!target.is_same(source)) {
      const at::NoGradGuard no_grad;
      target.copy_(source);
    }
    frame.values[changed] = target;
  }
  outputs.clear();
  outputs.reserve(user_outputs_.size());
  for (const Argument& output : user_outputs_) outputs.push_back(result(output, frame));
  for (size_t i = 0; i < frame.values.size(); ++i) {
    if (fixed_[i].isNone()) frame.values[i] = c10::IValue();
  }
  spare_frames_.push_back(std::move(frame));
}

// --- what a program consists of ---

std::vector<OperatorUse> operators_of(const Program& program) {
  Executable checker(program.values);
  checker.describe_inputs(program);
  std::map<std::string, OperatorUse> uses;
  const auto check = [&](const Node& node, OperatorUse& use) {
    try {
      const size_t known = checker.without_gradient_.size();
      checker.add_node(node);
      use.stops_gradients = use.stops_gradients || checker.without_gradient_.size() > known;
    } catch (const ProgramError& error) {
      if (use.refusal.empty()) use.refusal = error.what();
    }
  };
  const auto visit = [&](const auto& self, const Graph& graph) -> void {
    for (const Node& node : graph.nodes) {
      OperatorUse& use = uses[node.target];
      ++use.count;
      if (!is_region(node)) {
        check(node, use);
        for (const Argument& input : node.inputs) {
          if (input.graph) self(self, *input.graph);
        }
        continue;
      }
      // The region without its operators, each of which has a refusal of its own.
      Node region = node;
      for (Argument& input : region.inputs) {
        if (!input.graph) continue;
        input.graph = std::make_shared<Graph>(Graph{input.graph->inputs, {}, input.graph->outputs});
      }
      check(region, use);
      const bool computed = checker.computes_gradients_;
      if (node.target == kGradientRegion && !node.inputs.empty() && node.inputs[0].constant.isBool()) {
        checker.computes_gradients_ = node.inputs[0].constant.toBool();
      }
      for (const Argument& input : node.inputs) {
        if (input.graph) self(self, *input.graph);
      }
      checker.computes_gradients_ = computed;
    }
  };
  visit(visit, program.graph);
  std::vector<OperatorUse> result;
  for (auto& [target, use] : uses) {
    use.target = target;
    result.push_back(std::move(use));
  }
  return result;
}

}  // namespace lockstep::exported
