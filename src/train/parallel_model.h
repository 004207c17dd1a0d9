#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/data_parallel.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {
class Model;
class ShardedModel;
class World;
struct TrainConfig;
}  // namespace lockstep

namespace lockstep::train {

// A model over the ranks of a step: whole on each of them, or divided among them (ZeRO).
// All ranks make the same calls.
class ParallelModel {
 public:
  // By config.zero.stage. The optimizer, which is null for training without gradients, the
  // model and the world outlive it. ConfigError: what cannot be divided, and why.
  static std::unique_ptr<ParallelModel> make(const World& world, const Model& model,
                                             torch::optim::Optimizer* optimizer, const TrainConfig& config);
  virtual ~ParallelModel() = default;

  virtual void prepare_forward() = 0;
  // Before forwards without gradients: buffers are rank 0's on all ranks. Whether all ranks
  // have to make equally many of them, because parameters are put together on the way.
  virtual bool prepare_evaluation() = 0;
  virtual void zero_grad() = 0;
  // For a backward whose gradients others are added to before the update: not reduced while
  // the result lives. Nothing where it takes less memory to reduce each.
  virtual std::optional<GradientSync::NoSync> accumulate() = 0;
  // The mean gradients, or this rank's part of them.
  virtual std::vector<at::Tensor> flat_gradients() const = 0;
  virtual void clip_grad_norm(double max_norm) = 0;
  virtual void update(torch::optim::Optimizer& optimizer) = 0;
  virtual std::chrono::nanoseconds exposed_wait() const = 0;
  // Where it is divided.
  virtual ShardedModel* sharded() { return nullptr; }
};

}  // namespace lockstep::train
