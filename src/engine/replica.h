#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sharded_model.h>

#include <memory>
#include <optional>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"

namespace lockstep::engine {

// A model over the ranks of a step, with its optimizer: divided as the stage says, or whole
// for optimizers that look at whole parameters. All ranks make the same calls.
class Replica {
 public:
  // Module and optimizer outlive it. ConfigError: what cannot be divided, and why.
  static std::unique_ptr<Replica> make(std::shared_ptr<torch::nn::Module> module,
                                       torch::optim::Optimizer& optimizer, const Communicator& communicator,
                                       const ShardedOptions& options);
  virtual ~Replica() = default;

  virtual void prepare_forward() = 0;
  // Before forwards without gradients. Whether all ranks have to make equally many of them,
  // because parameters are put together on the way.
  virtual bool prepare_evaluation() = 0;
  virtual void zero_grad() = 0;
  virtual GradientSync::NoSync no_sync() = 0;
  // Whether gradients that are reduced add up, so that none has to be kept whole.
  virtual bool adds_reduced_gradients() const = 0;
  // Of all gradients, in float32 or wider, on their device; the same on all ranks.
  virtual at::Tensor grad_norm() const = 0;
  // Updates by the gradients times `factor`, where that is defined.
  virtual void step(const at::Tensor& factor) = 0;
  virtual std::chrono::nanoseconds exposed_wait() const = 0;
  virtual std::shared_ptr<void> gather_parameters() = 0;
  virtual std::optional<ShardedModel::Memory> memory() const = 0;
  // Null where it is whole.
  virtual ShardedModel* sharded() = 0;

  // This rank's part of a checkpoint; what is whole is rank 0's.
  virtual void add_to(checkpoint::Snapshot& snapshot) const = 0;
  virtual void restore_weights(const checkpoint::Reader& reader) = 0;
  virtual void restore_optimizer(const checkpoint::Reader& reader) = 0;
};

}  // namespace lockstep::engine
