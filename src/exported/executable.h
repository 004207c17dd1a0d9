#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <lockstep/sharded.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exported/operators.h"
#include "exported/program.h"
#include "exported/segments.h"

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

// A segment as a unit of sharding.
class SegmentUnit final : public parallel::Unit {
 public:
  using Unit::run;
};

// A program whose operators are resolved: each is an entry of LibTorch's dispatcher, with its arguments
// prepared. A run only copies arguments to a stack and calls.
//
// One thread at a time; run() may be called again while it runs (a recomputation in backward).
class Executable : public std::enable_shared_from_this<Executable> {
 public:
  // The steps of one call of a module.
  struct Segment {
    std::string path;
    size_t begin = 0;
    size_t end = 0;
    std::unique_ptr<SegmentUnit> unit;  // nullptr: it does not shard
    bool recomputes = false;            // without a unit; a unit knows it
    std::string refusal;                // why its activations cannot be computed again

    // What it uses of values that are defined before it, of parameters and the like, and of those among them
    // that the program changes (running statistics). What is used after it.
    std::vector<ValueId> inputs;
    std::vector<ValueId> fixed;
    std::vector<ValueId> state;
    std::vector<ValueId> outputs;
    std::vector<ValueId> defined;
  };

  // ProgramError: an operator that LibTorch does not have, that has another schema, or that is not
  // executed; with its name and its line of Python. An executable that computes activations again must be
  // owned by a shared pointer: graphs share it.
  explicit Executable(const Program& program, Cuts cuts = {});

  // Sets the tensor of an input that is no user's: a parameter, a buffer, a constant.
  void bind(ValueId value, at::Tensor tensor);

  // `inputs` are those that users pass, in their order; `outputs` becomes the user's outputs in their order.
  // `device` replaces the device of the program. With training false, batch norm and dropout evaluate.
  // From the second run on it allocates nothing but tensors, if `outputs` has the memory, no segment shards
  // or computes its activations again, and no attention prefers cuDNN.
  void run(const std::vector<c10::IValue>& inputs, bool training, c10::Device device,
           std::vector<c10::IValue>& outputs);

  // In the order of the program.
  const std::vector<Segment>& segments() const { return segments_; }
  // The segment with a unit that alone uses a parameter. nullopt: several do, or what is outside of segments;
  // an unused one has none and is not asked for.
  std::optional<size_t> owner_of(ValueId parameter) const {
    return segments_.empty() ? std::nullopt : owners_[parameter];
  }
  bool is_used(ValueId parameter) const { return !segments_.empty() && used_[parameter]; }

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
    enum class Kind { kOperator, kNumbers, kGradientRegion, kAutocastRegion, kSegment };
    Kind kind = Kind::kOperator;
    std::optional<c10::OperatorHandle> operation;
    NumberFunction function = nullptr;
    ArgumentCheck check = nullptr;
    std::vector<c10::IValue> arguments;
    std::vector<Use> uses;
    std::vector<ListUse> lists;
    std::vector<std::vector<ValueId>> outputs;
    std::vector<ValueId> unused;                             // outputs that nothing reads
    size_t region_end = 0;                                   // the step after the region's or segment's last
    size_t segment = 0;                                      // its number
    c10::DeviceType autocast_device = c10::DeviceType::CPU;  // of an autocast region
    // In evaluation the result is the first argument: batch norm does not count batches.
    bool only_in_training = false;
    bool is_attention = false;  // its kernel is chosen as nn::attention() chooses it
    // In evaluation bernoulli(p) gives this instead of random numbers: stochastic depth then keeps every
    // sample.
    std::optional<double> evaluation_fill;
    std::string where;   // "torch.ops.aten.linear.default at model.py:12"
    std::string module;  // the innermost module of Python: "layer1.0.conv1"
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

  // What recomputing a segment needs besides tensors.
  struct SegmentCall;
  class Aliases;

  friend std::vector<OperatorUse> operators_of(const Program& program);
  explicit Executable(size_t values);

  ValueId root(ValueId value) const;
  void describe_inputs(const Program& program);
  void add_graph(const Graph& graph);
  void add_node_of(const Graph& graph, size_t index);
  void add_nodes(const Graph& graph, const std::vector<std::vector<Cut>>& cuts, size_t begin, size_t end,
                 size_t depth);
  void add_segment(const Graph& graph, const std::vector<std::vector<Cut>>& cuts, size_t begin, size_t end,
                   size_t depth);
  void add_node(const Node& node);
  void add_region(const Node& node);
  void add_operator(const Node& node, const OperatorName& name, const c10::OperatorHandle& operation);
  void add_numbers(const Node& node, NumberFunction function);
  void add_switch(const Node& node, const OperatorName& name, const c10::FunctionSchema& schema);
  void add_argument(Step& step, const Argument& given, const c10::Argument& wanted);
  void add_list(Step& step, const Argument& given, const c10::TypePtr& element);
  void note_gradient(const Node& node, const OperatorName& name, const c10::OperatorHandle& operation);
  Use use_of(size_t argument, ValueId value, const c10::Type& wanted) const;
  std::vector<bool> kept_values() const;
  void find_last_uses();
  template <typename Visit>
  void for_each_use(const Step& step, const Visit& visit) const;
  void describe_segments();
  void describe(Segment& segment, const Aliases& aliases, std::vector<size_t>& seen) const;
  void find_owners(const Aliases& aliases);

  void prepare(bool training, c10::Device device);
  void run_steps(size_t begin, size_t end, Frame& frame);
  void run_region(size_t index, Frame& frame);
  void run_segment(size_t index, Frame& frame);
  void run_recomputed(size_t index, Frame& frame);
  std::vector<at::Tensor> run_again(size_t index, const SegmentCall& call,
                                    const std::vector<at::Tensor>& tensors);
  Frame take_frame();
  void push_arguments(const Step& step, Frame& frame) const;
  void run_step(const Step& step, Frame& frame) const;
  c10::IValue result(const Argument& output, const Frame& frame) const;

  // Only while it is constructed.
  const Program* program_ = nullptr;
  Cuts cuts_;
  std::vector<Cut> open_cuts_;

  std::vector<Step> steps_;
  std::vector<Segment> segments_;
  std::vector<std::optional<size_t>> owners_;  // by value
  std::vector<bool> used_;                     // by value
  std::vector<ValueId> roots_;                 // values of regions that are values outside of them
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
