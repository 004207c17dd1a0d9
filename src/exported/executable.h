#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exported/operators.h"
#include "exported/program.h"

namespace lockstep::exported {

// An operator of a program.
struct OperatorUse {
  std::string target;
  int64_t count = 0;
  std::string refusal;  // why an Executable refuses it, for its first use that is refused; empty: it does not
  bool stops_gradients = false;  // no gradients pass through it to a parameter
};
// Every operator, by name, including those in regions.
std::vector<OperatorUse> operators_of(const Program& program);

// A program whose operators are resolved: each is an entry of LibTorch's dispatcher, with its arguments
// prepared. A run only copies arguments to a stack and calls.
//
// One thread at a time; run() may be called again while it runs (a recomputation in backward).
class Executable {
 public:
  // ProgramError: an operator that LibTorch does not have, that has another schema, or that is not
  // executed; with its name and its line of Python.
  explicit Executable(const Program& program);

  // Sets the tensor of an input that is no user's: a parameter, a buffer, a constant.
  void bind(ValueId value, at::Tensor tensor);

  // `inputs` are those that users pass, in their order; returns the user's outputs in their order.
  // `device` replaces the device of the program. With training false, batch norm and dropout evaluate.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& inputs, bool training, c10::Device device);

  // Batch norm or dropout was exported in evaluation mode, and nothing in training mode.
  bool exported_for_evaluation() const { return switches_.empty() && frozen_switches_ > 0; }
  // Random numbers that evaluation mode cannot turn off: the operator and its line; empty: none.
  const std::string& always_random() const { return always_random_; }
  // Operators without an autograd formula, with their lines: those of libraries of users, through which no
  // gradients pass, and those of LibTorch between parameters and results, which throw in backward.
  const std::vector<std::string>& without_gradient() const { return without_gradient_; }

 private:
  // How a value becomes an argument of the type in the schema.
  enum class Convert { kNone, kReal, kTensor };

  struct Use {
    uint32_t argument = 0;
    ValueId value = 0;
    Convert convert = Convert::kNone;
    bool is_last = false;
  };

  // A list argument with values in it. The list is allocated once and refilled.
  struct ListUse {
    uint32_t argument = 0;
    std::vector<Use> elements;  // `argument`: the index in the list
  };

  struct Step {
    enum class Kind { kOperator, kNumbers, kGradientRegion, kAutocastRegion };
    Kind kind = Kind::kOperator;
    std::optional<c10::OperatorHandle> operation;
    NumberFunction function = nullptr;
    ArgumentCheck check = nullptr;
    std::vector<c10::IValue> arguments;
    std::vector<Use> uses;
    std::vector<ListUse> lists;
    std::vector<std::vector<ValueId>> outputs;
    std::vector<ValueId> unused;                             // outputs that nothing reads
    size_t region_end = 0;                                   // the step after the region's last
    c10::DeviceType autocast_device = c10::DeviceType::CPU;  // of an autocast region
    // In evaluation the result is the first argument: batch norm does not count batches.
    bool only_in_training = false;
    // In evaluation bernoulli(p) gives this instead of random numbers: stochastic depth then keeps every
    // sample.
    std::optional<double> evaluation_fill;
    std::string where;  // "torch.ops.aten.linear.default at model.py:12"
  };

  struct Switch {
    size_t step;
    size_t argument;
    c10::IValue training;
    c10::IValue evaluation;
  };

  struct DeviceArgument {
    size_t step;
    size_t argument;
  };

  // The memory of a run.
  struct Frame {
    std::vector<c10::IValue> values;  // by number
    std::vector<c10::IValue> stack;
    std::vector<at::Tensor> changed;  // what mutations_ are copied to
  };

  friend std::vector<OperatorUse> operators_of(const Program& program);
  explicit Executable(size_t values);

  ValueId root(ValueId value) const;
  void describe_inputs(const Program& program);
  void add_graph(const Graph& graph);
  void add_node(const Node& node);
  void add_region(const Node& node);
  void add_operator(const Node& node, const OperatorName& name, const c10::OperatorHandle& operation);
  void add_numbers(const Node& node, NumberFunction function);
  void add_switch(const Node& node, const OperatorName& name, const c10::FunctionSchema& schema);
  void add_argument(Step& step, const Argument& given, const c10::Argument& wanted);
  void add_list(Step& step, const Argument& given, const c10::TypePtr& element);
  void note_gradient(const Node& node, const OperatorName& name, const c10::OperatorHandle& operation);
  Use use_of(size_t argument, ValueId value, const c10::Type& wanted) const;
  void find_last_uses();

  void prepare(bool training, c10::Device device);
  void run_steps(size_t begin, size_t end, Frame& frame);
  void run_region(size_t index, Frame& frame);
  void push_arguments(const Step& step, Frame& frame) const;
  void run_step(const Step& step, Frame& frame) const;
  c10::IValue result(const Argument& output, const Frame& frame) const;

  std::vector<Step> steps_;
  std::vector<ValueId> roots_;  // values of regions that are values outside of them
  std::vector<ValueId> user_inputs_;
  std::vector<std::pair<ValueId, ValueId>> mutations_;  // the new value, and the input it is copied to
  std::vector<Argument> user_outputs_;
  std::vector<Switch> switches_;
  std::vector<DeviceArgument> devices_;
  size_t frozen_switches_ = 0;
  std::string always_random_;
  std::vector<std::string> without_gradient_;
  // While the program is added: values with gradients of parameters, values that may have gradients, and
  // whether the region computes them.
  std::vector<bool> trained_;
  std::vector<bool> differentiable_;
  bool computes_gradients_ = true;

  std::vector<c10::IValue> fixed_;  // values that outlive a run
  std::vector<bool> counters_;      // values that count the batches of a batch norm
  std::vector<Frame> spare_frames_;
  std::optional<bool> training_;
  std::optional<c10::Device> device_;
};

}  // namespace lockstep::exported
