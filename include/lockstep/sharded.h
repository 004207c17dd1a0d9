#pragma once

// Trains a model whose optimizer state, gradients and parameters are sharded over the ranks (ZeRO), in
// a training loop of your own; the trainer does the same with TrainConfig::zero. Also here: activation
// checkpointing, which computes activations again in backward, and plan_zero(), which computes the
// memory of a training before it runs.
//
// Example:
//
//   lockstep::ShardedModel model(net.ptr(), optimizer, world.communicator(), {.zero = {.stage = 2}});
//   model.zero_grad();
//   model.prepare_forward();
//   torch::mse_loss(net->forward(x), y).backward();
//   model.step();
//
// More: docs/shard.md

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

// From now on every Sharded<> module inside `module` keeps only its inputs for backward and computes
// the rest again: less memory for about a third more time. Works without ranks, with DataParallel and
// with ShardedModel at any stage, also for units inside of units. The gradients have the same bits.
// Random numbers (dropout) are drawn again from the same state, and autocast is the same.
//
// A module that counts its forwards, as BatchNorm does for its running statistics, counts two. Second
// derivatives are not possible (ConfigError in backward).
//
// ConfigError: there is no Sharded<> module.
void set_activation_checkpointing(torch::nn::Module& module, bool enabled = true);

// A function of tensors that returns tensors.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// The same for any function: returns its outputs, and its backward runs the function again. Gradients
// go to `inputs`, which may be undefined or need no gradient, and to `parameters`: name all parameters
// that the function uses and that need a gradient. The function must return the same each time, and own
// everything it refers to: it lives as long as the graph. If gradients are off, the function just runs.
std::vector<at::Tensor> recompute_in_backward(const TensorFunction& function,
                                              const std::vector<at::Tensor>& inputs,
                                              const std::vector<at::Tensor>& parameters);

namespace parallel {

// Observes the units of a model during a step. See ShardedModel.
class UnitWatcher {
 public:
  virtual ~UnitWatcher() = default;
  virtual void before_forward(size_t unit) = 0;
  virtual void after_forward(size_t unit) = 0;
  // Called before the gradients of the unit's parameters are computed.
  virtual void before_backward(size_t unit) = 0;
};

// Calls visit(tensor) for each tensor of arguments or results, in order; ignores other values. Works on
// const values too.
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

// The interface of a Sharded module to ShardedModel.
class Unit {
 public:
  virtual ~Unit() = default;
  // nullptr: stop observing.
  void attach(UnitWatcher* watcher, size_t index) { *link_ = {watcher, index}; }
  bool attached() const { return link_->watcher != nullptr; }
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

  // Graphs share it, because they may outlive the module.
  struct Link {
    UnitWatcher* watcher = nullptr;
    size_t index = 0;
  };
  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  bool checkpoints_ = false;
};

// A module with units that are no modules: the parts of an exported program (exported_model.h).
class UnitSource {
 public:
  struct Owned {
    Unit* unit;
    std::vector<at::Tensor> parameters;  // of the module; those of no unit belong to the module itself
  };
  virtual ~UnitSource() = default;
  // In the order in which they run. The module owns them.
  virtual std::vector<Owned> units() = 0;
};

}  // namespace parallel

template <typename M, typename Forward = decltype(&M::forward)>
class ShardedImpl;

// The module inside a Sharded holder.
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
      inputs.push_back(std::exchange(argument, at::Tensor()));  // the graph keeps and checks them
    });
    const auto result = std::make_shared<std::optional<Result>>();  // result of the last call
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

// A module that is a unit of sharding: ShardedModel at stage 3 gathers its parameters only while it
// runs. Otherwise it is the module itself, with the same parameters under the same names.
//
//   struct BlockImpl : torch::nn::Module {
//     explicit BlockImpl(int64_t width);
//     torch::Tensor forward(torch::Tensor x);
//   };
//   using Block = lockstep::Sharded<BlockImpl>;
//   layers->push_back(Block(512));
//
// Units may be inside of units: the inner unit owns its parameters. forward() must have one signature
// and return a tensor, or a vector or tuple of tensors. At stage 3 the parameters have no elements
// outside of forward and backward: see ShardedModel::gather_parameters().
//
// A unit can compute its activations again in backward: see set_activation_checkpointing(). Its
// arguments are copied then, and should own their data (a std::vector, not an ArrayRef).
template <typename M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

struct ShardedOptions {
  // What is sharded and offloaded. With offload the optimizer's tensors are on the CPU; its class and
  // options stay the same.
  ZeroOptions zero = {.stage = 1};

  // As in DataParallelOptions, but a parameter that no rank has used has a gradient of zero: weight
  // decay and momentum change it. At stage 3 all ranks run the same units, and gradients are reduced
  // only at the end of backward.
  bool find_unused_parameters = false;
  // As in DataParallelOptions.
  bool broadcast_buffers = true;

  // The dtype in which gradients are reduced. Unset: their own.
  std::optional<c10::ScalarType> communication_dtype = {};
  // Gradients are divided by this factor before the sum, and by world size / factor after it, so that
  // 16-bit sums do not overflow. With 1 they are divided by the world size, before the sum as
  // DataParallel does, or after it if divide_after_sum is set.
  double gradient_predivide_factor = 1.0;
  bool divide_after_sum = false;
  // true: the sum over the ranks instead of the mean; nothing is divided.
  bool sum_gradients = false;

  // Where the model trains. Parameters and buffers that are elsewhere are moved there; those that stage
  // 3 shards are moved bucket by bucket, so a model in host memory may be larger than the device.
  // Unset: where the parameters are.
  std::optional<c10::Device> device = {};

  // The dtype of the forward under autocast, as with the trainer's `precision`. Plans and the check of
  // memory then count autocast's 16-bit copies of float32 weights.
  std::optional<c10::ScalarType> autocast_dtype = {};

  // Bytes that a rank may use for parameters, gradients and optimizer state. Unset: what is free on its
  // GPU; on CPUs what RLIMIT_AS, RLIMIT_DATA and control groups leave.
  std::optional<int64_t> memory_limit_bytes = {};

  // Accept an optimizer of a class that this library does not know. It must treat every element
  // independently, because it sees shards of flat buckets instead of parameters.
  bool allow_untested_optimizer = false;
};

// Trains one model with its state sharded over the ranks (ZeRO): each rank updates its shard of every
// bucket of parameters, and the ranks exchange the results. For 16-bit parameters each rank keeps and
// updates its shard in float32.
//
// Construction moves parameters into flat memory (row-major) and gives the optimizer this rank's shards
// in place of the parameters, group by group: learning rates and schedules work as before. After
// backward use flat_gradients(), the gradients of this rank's shards, not the parameters' grad().
//
// Collective: all ranks construct it and make the same calls. One thread at a time. Module and
// optimizer must outlive it, and must not be used without it; it must outlive every backward over the
// module.
class ShardedModel {
 public:
  // All parameters are complete on every rank while it exists: to read them, or to write them (the same
  // values on every rank). Writes take effect when it is destroyed. step() is refused (ConfigError) in
  // the meantime.
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

  // Collective; blocks until all ranks are here. ConfigError: the ranks' models differ; a trained
  // parameter is in no group of the optimizer, or the optimizer has a parameter that is not in the
  // model; the optimizer's class cannot work on shards (LBFGS), or it already has state; a rank needs
  // more memory than it may use (the error names the stage that would fit).
  ShardedModel(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
               Communicator communicator, ShardedOptions options = {});
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Call it before each forward, on all ranks. ConfigError: as GradientSync::prepare_forward().
  // Collective.
  void prepare_forward();
  // Copies rank 0's buffers to all ranks. Collective.
  void sync_buffers();
  // Call it before forwards without gradients. Copies rank 0's buffers to all ranks. At stage 3 units
  // are gathered as they run, so all ranks must run equally many forwards. Collective.
  void prepare_evaluation();

  // Clears all gradients.
  void zero_grad();
  // Backwards inside the scope only add to this rank's gradients, which are not sharded in the
  // meantime; the first backward after it reduces the sum.
  [[nodiscard]] GradientSync::NoSync no_sync();

  // This rank's shards of the mean gradients. Valid after a backward that reduced.
  std::vector<at::Tensor> flat_gradients() const;
  // Scales the gradients of all ranks' shards so that their total norm is at most max_norm, and returns
  // the norm before that. norm_type may be infinity. Collective.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0);
  // The norm alone, in float32 or wider, the same on all ranks: not finite if a gradient of any rank is
  // not. Collective.
  at::Tensor grad_norm(double norm_type = 2.0) const;

  // Updates this rank's shards and gathers the updated parameters on all ranks; at stage 3 they are
  // gathered later, when they are needed. Collective.
  void step() { step(at::Tensor()); }
  // The same with every gradient multiplied by `factor`, one number, in the precision of the update:
  // unscaling and clipping in one pass. flat_gradients() may be changed afterwards.
  void step(const at::Tensor& factor);
  // With overlap_gather: waits until everything that step() started has arrived. Collective.
  void finish_step();

  // Gathers all parameters while the result exists. Collective.
  [[nodiscard]] Gathered gather_parameters() { return Gathered(this); }

  const ShardedOptions& options() const;
  const Communicator& communicator() const;
  // As GradientSync::exposed_wait().
  std::chrono::nanoseconds exposed_wait() const;

  // Bytes on this rank.
  struct Memory {
    int64_t parameters = 0;  // replicated ones and shards, in their own dtype
    int64_t gradients = 0;
    int64_t master = 0;     // float32 shards of 16-bit parameters, and offloaded copies
    int64_t optimizer = 0;  // its state
    int64_t buffers = 0;    // temporary memory of gradients and parameters, in use or kept for reuse
    // The most that autocast's 16-bit copies of float32 weights take at a time. Only in plans: they
    // exist only within a step.
    int64_t casts = 0;
    // How much of all these offload keeps in host memory, and in files.
    int64_t host = 0;
    int64_t nvme = 0;
    int64_t total() const { return parameters + gradients + master + optimizer + buffers + casts; }
    int64_t device() const { return total() - host - nvme; }
  };
  // What this rank holds now.
  Memory memory() const;

  // --- for checkpoints, which name parameters independently of stage and world size ---

  // A shard: elements [first, first + data.numel()), row-major, of a tensor of this shape.
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
    int64_t first = 0;
    at::Tensor data;  // memory of the model: the next step changes it
    // Set for a shard that is in a file and is to be read later; `data` has no content then. Returns
    // the content. Call it before the next step; several threads may call it at a time.
    std::function<at::Tensor()> read = nullptr;
  };
  // For shards that offload keeps in a file: kLater avoids memory for all of them at a time.
  enum class Content { kNow, kLater };
  // This rank's shards of the trained parameters: in the parameters' dtype, and in the optimizer's
  // dtype. Both are the same shards unless parameters are 16-bit.
  std::vector<Part> parameter_parts() const;
  std::vector<Part> master_parts(Content content = Content::kNow) const;
  bool has_masters() const;
  // flat_gradients() by parameter, for the buckets that were reduced since zero_grad().
  std::vector<Part> gradient_parts() const;
  // Shapes of all trained parameters, on every rank.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // This rank's shards of the state, named "PARAMETER/FIELD", and the other values, in the form of
  // OptimizerState.
  struct OptimizerParts {
    std::vector<Part> parts;
    std::string values;
  };
  OptimizerParts optimizer_parts(Content content = Content::kNow) const;

  // Fills the data of the given shards, which are in host memory.
  using ReadParts = std::function<void(const std::vector<Part>& parts)>;
  // Reads this rank's shards; the ranks exchange what they have read. `read_masters` is empty if no
  // masters were saved: they then start from the parameters. Collective.
  void load_parameters(const ReadParts& read, const ReadParts& read_masters);
  // Reads this rank's shards of the optimizer's state. ConfigError: another class of optimizer, or
  // other groups. No communication.
  void load_optimizer(const std::string& values, const ReadParts& read);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// The memory that training a sharded model takes, computed before it runs.
struct ZeroPlan {
  // A bucket of parameters that are communicated together.
  struct Bucket {
    c10::ScalarType dtype = c10::ScalarType::Float;
    int64_t elements = 0;  // elements of its parameters
    int64_t padding = 0;   // elements added so that all shards are equal
    int64_t part = 0;      // elements of each rank's shard
    bool resident = true;  // always replicated on every rank
    int group = 0;         // group of the optimizer
    size_t unit = 0;       // its Sharded module, from 1; 0: none
    std::vector<std::string> parameters;
  };

  // Of one rank, from the second step on, when all state exists. Equal to ShardedModel::memory() if
  // gradients are computed in the reverse order of registration and units run in the order of
  // registration; otherwise `buffers` may differ.
  ShardedModel::Memory memory;
  int64_t elements = 0;         // trained elements of the whole model
  int64_t parameter_bytes = 0;  // bytes of these
  int64_t other_bytes = 0;      // frozen parameters and buffers, replicated on every rank
  std::vector<Bucket> buckets;
};

// The plan of ShardedModel for `ranks` ranks, made by the same code. Tensors may be on the meta device.
// The optimizer's state is measured on a small tensor; the optimizer itself does not change. No
// communication, and almost no memory.
//
// ConfigError: as the constructor of ShardedModel.
ZeroPlan plan_zero(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   const ShardedOptions& options);

}  // namespace lockstep
