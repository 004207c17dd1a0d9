#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
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

// The side of a Sharded module that a ShardedModel attaches to.
class Unit {
 public:
  virtual ~Unit() = default;
  // nullptr: no longer watched.
  void attach(UnitWatcher* watcher, size_t index) { *link_ = {watcher, index}; }

 protected:
  template <typename Body>
  auto run(Body&& body) {
    if (link_->watcher == nullptr) return body();
    link_->watcher->before_forward(link_->index);
    auto outputs = body();
    watch(outputs);
    link_->watcher->after_forward(link_->index);
    return outputs;
  }

 private:
  void watch(const at::Tensor& output);
  void watch(const std::vector<at::Tensor>& outputs) {
    for (const at::Tensor& output : outputs) watch(output);
  }
  template <typename... Tensors>
  void watch(const std::tuple<Tensors...>& outputs) {
    std::apply([this](const auto&... output) { (watch(output), ...); }, outputs);
  }

  // Graphs share it, which may outlive the module.
  struct Link {
    UnitWatcher* watcher = nullptr;
    size_t index = 0;
  };
  std::shared_ptr<Link> link_ = std::make_shared<Link>();
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
    return run([&]() -> Result { return M::forward(std::forward<Args>(args)...); });
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
template <typename M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

}  // namespace lockstep
