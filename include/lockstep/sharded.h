#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/activation_checkpoint.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace shard {

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

}  // namespace shard

template <typename M, typename Forward = decltype(&M::forward)>
class ShardedImpl;

// See Sharded.
template <typename M, typename Owner, typename Result, typename... Args>
class ShardedImpl<M, Result (Owner::*)(Args...)> : public M, public shard::Unit {
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
    shard::for_each_tensor(arguments, [&](at::Tensor& argument) {
      inputs.push_back(std::exchange(argument, at::Tensor()));  // the graph has them, and checks them
    });
    const auto result = std::make_shared<std::optional<Result>>();  // of the last call
    const auto call = [self = this->shared_from_this(), this, arguments = std::move(arguments),
                       result](const std::vector<at::Tensor>& tensors) {
      Arguments filled = arguments;
      size_t next = 0;
      shard::for_each_tensor(filled, [&](at::Tensor& argument) { argument = tensors[next++]; });
      result->emplace(std::apply(
          [this](auto&... args) -> Result { return M::forward(std::forward<Args>(args)...); }, filled));
      std::vector<at::Tensor> outputs;
      shard::for_each_tensor(
          **result, [&](at::Tensor& output) { outputs.push_back(std::exchange(output, at::Tensor())); });
      return outputs;
    };
    const std::vector<at::Tensor> outputs = recompute_in_backward(call, inputs, this->parameters());
    Result adopted = **result;
    size_t next = 0;
    shard::for_each_tensor(adopted, [&](at::Tensor& output) { output = outputs[next++]; });
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

}  // namespace lockstep
