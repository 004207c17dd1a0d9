#pragma once

// ZeRO: one model with optimizer state, gradients and parameters sharded over the ranks; activations that are
// computed again in backward; and what a model will take before it runs.
//
//   lockstep::ShardedModel model(net.ptr(), optimizer, world.communicator(), {.zero = {.stage = 2}});

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/zero.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// From here on every Sharded<> module inside keeps its inputs alone for backward, and
// computes again what it needs of the rest: less memory for about a third more time. Alone,
// under DataParallel and under ShardedModel at any stage; units inside of units too.
// Gradients have the bits that they have without it. Random numbers (dropout) are drawn
// again from the same state, and autocast is as it was.
//
// A module that counts its forwards, as BatchNorm does for its running statistics, counts
// two. The gradient of a gradient is refused (ConfigError in backward).
//
// ConfigError: there is no Sharded<> module.
void set_activation_checkpointing(torch::nn::Module& module, bool enabled = true);

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// The same for any function: its outputs, with a backward that runs it again. Gradients go
// to `inputs`, which may be undefined or need none, and to `parameters`: name all that the
// function uses and that needs one. It must do the same each time, and own what it refers
// to: it lives as long as the graph. Where gradients are off it just runs.
std::vector<at::Tensor> recompute_in_backward(const TensorFunction& function,
                                              const std::vector<at::Tensor>& inputs,
                                              const std::vector<at::Tensor>& parameters);

namespace parallel {

// What follows the units of a model through a step. See ShardedModel.
class UnitWatcher {
 public:
  virtual ~UnitWatcher() = default;
  virtual void before_forward(size_t unit) = 0;
  virtual void after_forward(size_t unit) = 0;
  // Before the gradients of the unit's parameters are computed.
  virtual void before_backward(size_t unit) = 0;
};

// Calls visit(tensor) for each tensor of arguments or results, in order; other values are
// passed over. Works on const values too.
template <typename Value, typename Visit>
void for_each_tensor(Value& value, Visit&& visit) {
  using Plain = std::remove_const_t<Value>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    visit(value);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... item) { (for_each_tensor(item, visit), ...); }, value);
  } else if constexpr (std::is_same_v<Plain, std::optional<at::Tensor>>) {
    if (value) visit(*value);
  } else if constexpr (std::is_same_v<Plain, std::vector<at::Tensor>>) {
    for (auto& item : value) visit(item);
  }
}

// The side of a Sharded module that a ShardedModel attaches to.
class Unit {
 public:
  virtual ~Unit() = default;
  // nullptr: no longer watched.
  void attach(UnitWatcher* watcher, size_t index) { *link_ = {watcher, index}; }
  void set_activation_checkpointing(bool enabled) { checkpoints_ = enabled; }
  bool checkpoints() const { return checkpoints_; }

 protected:
  template <typename Body>
  auto run(Body&& body) {
    if (link_->watcher == nullptr) return body();
    link_->watcher->before_forward(link_->index);
    auto outputs = body();
    for_each_tensor(outputs, [this](const at::Tensor& output) { watch(output); });
    link_->watcher->after_forward(link_->index);
    return outputs;
  }

 private:
  void watch(const at::Tensor& output);

  // Graphs share it, which may outlive the module.
  struct Link {
    UnitWatcher* watcher = nullptr;
    size_t index = 0;
  };
  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  bool checkpoints_ = false;
};

}  // namespace parallel

template <typename M, typename Forward = decltype(&M::forward)>
class ShardedImpl;

// See Sharded.
template <typename M, typename Owner, typename Result, typename... Args>
class ShardedImpl<M, Result (Owner::*)(Args...)> : public M, public parallel::Unit {
 public:
  using M::M;

  Result forward(Args... args) {
    return run([&]() -> Result {
      if constexpr ((std::is_copy_constructible_v<std::decay_t<Args>> && ...)) {
        if (checkpoints()) return forward_again_in_backward({args...});
      }
      return M::forward(std::forward<Args>(args)...);
    });
  }

 private:
  using Arguments = std::tuple<std::decay_t<Args>...>;

  Result forward_again_in_backward(Arguments arguments) {
    std::vector<at::Tensor> inputs;
    parallel::for_each_tensor(arguments, [&](at::Tensor& argument) {
      inputs.push_back(std::exchange(argument, at::Tensor()));  // the graph has them, and checks them
    });
    const auto result = std::make_shared<std::optional<Result>>();  // of the last call
    const auto call = [self = this->shared_from_this(), this, arguments = std::move(arguments),
                       result](const std::vector<at::Tensor>& tensors) {
      Arguments filled = arguments;
      size_t next = 0;
      parallel::for_each_tensor(filled, [&](at::Tensor& argument) { argument = tensors[next++]; });
      result->emplace(std::apply(
          [this](auto&... args) -> Result { return M::forward(std::forward<Args>(args)...); }, filled));
      std::vector<at::Tensor> outputs;
      parallel::for_each_tensor(
          **result, [&](at::Tensor& output) { outputs.push_back(std::exchange(output, at::Tensor())); });
      return outputs;
    };
    const std::vector<at::Tensor> outputs = recompute_in_backward(call, inputs, this->parameters());
    Result adopted = **result;
    size_t next = 0;
    parallel::for_each_tensor(adopted, [&](at::Tensor& output) { output = outputs[next++]; });
    return adopted;
  }
};

// A module that is put together by itself where a model's parameters are divided over the
// ranks (ShardedModel, stage 3), and otherwise is the module as ever: of the same
// parameters under the same names.
//
//   struct BlockImpl : torch::nn::Module {
//     explicit BlockImpl(int64_t width);
//     torch::Tensor forward(torch::Tensor x);
//   };
//   using Block = lockstep::Sharded<BlockImpl>;
//   layers->push_back(Block(512));
//
// Units may be inside of units: an inner one owns its parameters. forward() has one
// signature and returns a tensor, a vector or a tuple of tensors. Outside of forward and
// backward its parameters have no elements: see ShardedModel::gather_parameters().
//
// A unit may compute its activations again in backward instead of keeping them: see
// set_activation_checkpointing(). Its arguments are copied then, and should own what they
// refer to (a std::vector, not an ArrayRef).
template <typename M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

struct ShardedOptions {
  // What is sharded and offloaded. With offload the optimizer's tensors are on the CPU; its class and
  // its options stay.
  ZeroOptions zero = {.stage = 1};

  // As in DataParallelOptions, but a parameter that no rank used counts as one with a
  // gradient of zero: weight decay and momentum move it. At stage 3 all ranks run the same
  // units, and gradients are reduced at the end of backward only.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;

  // What gradients are reduced in. Unset: their own dtype.
  std::optional<c10::ScalarType> communication_dtype = {};
  // Gradients are divided by this before they are summed, and by the rest of the world
  // size after it: against overflow of 16-bit sums. With 1 they are divided by the world
  // size before the sum, as DataParallel does, or after it.
  double gradient_predivide_factor = 1.0;
  bool divide_after_sum = false;
  // The sum over the ranks in place of the mean: nothing is divided.
  bool sum_gradients = false;

  // Where the model trains. Parameters and buffers that are elsewhere go there, those that
  // stage 3 divides bucket by bucket: a model in host memory may be larger than the device.
  // Unset: where the parameters are.
  std::optional<c10::Device> device = {};

  // What the forward computes in under autocast, as a trainer with `precision` does: its 16-bit copies
  // of float32 weights then count in plans and in the check of memory.
  std::optional<c10::ScalarType> autocast_dtype = {};

  // What a rank may use for parameters, gradients and optimizer state, in bytes. Unset: what
  // is free on its GPU; on CPUs what RLIMIT_AS, RLIMIT_DATA and control groups leave.
  std::optional<int64_t> memory_limit_bytes = {};

  // Take an optimizer of a class that this library does not know. It must treat every
  // element by itself: it sees parts of flat buckets, not parameters.
  bool allow_untested_optimizer = false;
};

// Trains one model with its states divided over the ranks (ZeRO): each rank updates its
// part of every bucket of parameters, and the ranks give each other the results. With
// 16-bit parameters the parts are kept, and updated, in float32.
//
//   ShardedModel model(net.ptr(), optimizer, world.communicator(), {.zero = {.stage = 2}});
//   model.zero_grad();
//   model.prepare_forward();
//   loss(net->forward(x), y).backward();
//   model.step();
//
// Construction moves parameters into flat memory (row-major) and gives the optimizer this
// rank's parts in their place, group by group: learning rates and schedules work as ever.
// Gradients of the parameters themselves are of no use after backward: those of this
// rank's parts are in flat_gradients().
//
// All ranks construct it and make the same calls, from one thread at a time. Module and
// optimizer must outlive it and go nowhere without it; it must outlive every backward over
// the module.
class ShardedModel {
 public:
  // Keeps all parameters whole while it lives: to look at them, or to write them (every
  // rank the same), which counts from its end on. step() is refused meanwhile.
  class Gathered {
   public:
    ~Gathered();
    Gathered(Gathered&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
    Gathered& operator=(Gathered&&) = delete;

   private:
    friend class ShardedModel;
    explicit Gathered(ShardedModel* model);
    ShardedModel* model_;
  };

  // Blocks until all ranks are here. ConfigError: the ranks' models differ; a trained
  // parameter is in no group of the optimizer, or a parameter of it is not in the model;
  // the optimizer is of a class that cannot work on parts (LBFGS), or has a state already;
  // a rank may not use as much memory as it would need, with the stage that would fit.
  ShardedModel(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
               Communicator communicator, ShardedOptions options = {});
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Before each forward, on all ranks alike. ConfigError as GradientSync.
  void prepare_forward();
  void sync_buffers();
  // Before forwards without gradients, of which all ranks make equally many at stage 3:
  // buffers are rank 0's, and units are put together as they run.
  void prepare_evaluation();

  // Forgets all gradients.
  void zero_grad();
  // Backwards inside the scope only add to this rank's gradients, which are whole
  // meanwhile; the first one after it reduces the sum.
  [[nodiscard]] GradientSync::NoSync no_sync();

  // This rank's parts of the mean gradients. Valid after a backward that reduced.
  std::vector<at::Tensor> flat_gradients() const;
  // Over all ranks' parts: scales them so that their total norm is at most max_norm, and
  // returns the norm before. Collective. norm_type may be infinity.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0);
  // The norm alone, in float32 or wider, the same on all ranks: not finite where a gradient
  // of some rank is not. Collective.
  at::Tensor grad_norm(double norm_type = 2.0) const;

  // Updates this rank's parts and makes the parameters of all ranks whole again, or
  // theirs to be: stage 3 puts them together when they are needed. Collective.
  void step() { step(at::Tensor()); }
  // The same with every gradient times `factor`, one number, in the precision of the
  // update: unscaling and clipping in one pass. flat_gradients() may have changed after it.
  void step(const at::Tensor& factor);
  // With overlap_gather: waits until all that step() has started has arrived. Collective.
  void finish_step();

  [[nodiscard]] Gathered gather_parameters() { return Gathered(this); }

  const ShardedOptions& options() const;
  const Communicator& communicator() const;
  std::chrono::nanoseconds exposed_wait() const;

  // Bytes on this rank, now.
  struct Memory {
    int64_t parameters = 0;  // whole ones and parts, in their own dtype
    int64_t gradients = 0;
    int64_t master = 0;     // float32 parts of 16-bit parameters, and offloaded copies
    int64_t optimizer = 0;  // its state
    int64_t buffers = 0;    // lent to gradients and parameters for a while, or kept for it
    // The most that autocast's 16-bit copies of float32 weights take at a time. In plans alone: they
    // come and go within a step.
    int64_t casts = 0;
    // Of all these: what offload has put into host memory, and into files.
    int64_t host = 0;
    int64_t nvme = 0;
    int64_t total() const { return parameters + gradients + master + optimizer + buffers + casts; }
    int64_t device() const { return total() - host - nvme; }
  };
  Memory memory() const;

  // --- for checkpoints, which name parameters whatever the stage and the world size ---

  // Elements [first, first + data.numel()), row-major, of a tensor of this shape.
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
    int64_t first = 0;
    at::Tensor data;  // the model's own memory: the next step changes it
    // Reads what is in a file and was not to be read at once; `data` has no content then. Before
    // the next step; by several threads at a time, if they like.
    std::function<at::Tensor()> read = nullptr;
  };
  // Of parts that offload keeps in a file: kLater needs no memory for all of them at a time.
  enum class Content { kNow, kLater };
  // What this rank owns of the trained parameters: in their own dtype, and in that of
  // the optimizer, which are the same parts unless parameters are 16-bit.
  std::vector<Part> parameter_parts() const;
  std::vector<Part> master_parts(Content content = Content::kNow) const;
  bool has_masters() const;
  // flat_gradients() by parameter, of the buckets that were reduced since zero_grad().
  std::vector<Part> gradient_parts() const;
  // Of all trained parameters, whoever owns them.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // Parts of "PARAMETER/FIELD", and all else, as OptimizerState has it.
  struct OptimizerParts {
    std::vector<Part> parts;
    std::string values;
  };
  OptimizerParts optimizer_parts(Content content = Content::kNow) const;

  // Fills the data of all these parts, which lie in host memory.
  using ReadParts = std::function<void(const std::vector<Part>& parts)>;
  // Collective: the ranks give each other what each has read. `read_masters` is empty where
  // nobody has saved masters: they start from the parameters then.
  void load_parameters(const ReadParts& read, const ReadParts& read_masters);
  // ConfigError: another class of optimizer or other groups.
  void load_optimizer(const std::string& values, const ReadParts& read);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// What training a model with divided states (ZeRO) takes, told before it runs.
struct ZeroPlan {
  struct Bucket {
    c10::ScalarType dtype = c10::ScalarType::Float;
    int64_t elements = 0;  // of its parameters
    int64_t padding = 0;   // elements after them, so that ranks share it evenly
    int64_t part = 0;      // elements that each rank owns
    bool resident = true;  // whole on every rank at all times
    int group = 0;         // of the optimizer
    size_t unit = 0;       // the Sharded module that it belongs to, from 1 on; 0: none
    std::vector<std::string> parameters;
  };

  // Of one rank, when all that a training keeps is there: from the second step on. What
  // ShardedModel::memory() says then, as long as gradients come in the reverse of the order
  // of registration and units run in that order; otherwise buffers may differ.
  ShardedModel::Memory memory;
  int64_t elements = 0;         // trained ones, of the whole model
  int64_t parameter_bytes = 0;  // of these, whole
  int64_t other_bytes = 0;      // frozen parameters and buffers, which every rank has
  std::vector<Bucket> buckets;
};

// As ShardedModel would divide the module over so many ranks: the same code decides.
// Tensors may be on the meta device. The optimizer's state is found out on a small tensor;
// the optimizer is as before afterwards. No communication, no memory to speak of.
//
// ConfigError as the constructor of ShardedModel.
ZeroPlan plan_zero(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   const ShardedOptions& options);

}  // namespace lockstep
