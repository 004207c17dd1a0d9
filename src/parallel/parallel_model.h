#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sharded.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/model_snapshot.h"

namespace lockstep::parallel {

// How a model is kept at stage 0, where every rank holds the complete state.
enum class StageZero {
  // Replicated: gradients are averaged (GradientSync) and the optimizer updates the parameters
  // themselves. Any optimizer works. 16-bit parameters have no float32 masters. A parameter that no
  // rank used has no gradient, and the optimizer skips it.
  kReplicate,
  // In the flat buckets of a ShardedModel: its options for gradients apply, 16-bit parameters have
  // float32 masters, and the optimizer must work element by element. A parameter that no rank used has a
  // gradient of zero, so that weight decay and momentum move it.
  kFlatBuckets,
};

struct ParallelOptions {
  ShardedOptions sharding = {};
  StageZero stage_zero = StageZero::kReplicate;
  // Of a replicated model: its buckets, compression and static graph; the other options are those of
  // `sharding`.
  DataParallelOptions replicated = {};
};

// A model on all ranks: replicated on each of them, or sharded over them (ZeRO). All ranks make the
// same calls, from one thread at a time.
class ParallelModel {
 public:
  // Replicated at stage 0 with kReplicate, else sharded. `optimizer` is null for training without
  // gradients, which must be replicated. Module and optimizer outlive the model. Blocks until all ranks
  // are here. ConfigError: what cannot be sharded, and why; a rank's memory does not suffice.
  static std::unique_ptr<ParallelModel> make(std::shared_ptr<torch::nn::Module> module,
                                             torch::optim::Optimizer* optimizer,
                                             const Communicator& communicator,
                                             const ParallelOptions& options);
  virtual ~ParallelModel() = default;

  // --- a step

  virtual void prepare_forward() = 0;
  // Before forwards without gradients: buffers become rank 0's on all ranks. True: all ranks have to
  // make equally many forwards, because parameters are gathered in them.
  virtual bool prepare_evaluation() = 0;
  virtual void zero_grad() = 0;
  // Backwards inside the scope are not reduced; the first one after it reduces the sum.
  virtual GradientSync::NoSync no_sync() = 0;
  // For a backward that is not the last of its step: no_sync(), or nothing if it takes less memory to
  // reduce each backward and to sum the shards.
  virtual std::optional<GradientSync::NoSync> accumulate() { return no_sync(); }
  // The mean gradients, or this rank's shards of them.
  virtual std::vector<at::Tensor> flat_gradients() const = 0;
  // The norm of all gradients in float32 or wider, on their device, the same on all ranks. Collective.
  virtual at::Tensor grad_norm() const = 0;
  virtual void clip_grad_norm(double max_norm) = 0;
  // Updates by the gradients times `factor`, one number, if it is defined. ConfigError: the model was
  // sharded with another optimizer.
  virtual void update(torch::optim::Optimizer& optimizer, const at::Tensor& factor) = 0;
  void update(torch::optim::Optimizer& optimizer) { update(optimizer, at::Tensor()); }

  // --- state

  // Total time that backwards waited for collectives at their end.
  virtual std::chrono::nanoseconds exposed_wait() const = 0;
  // Keeps the parameters complete and up to date while the result exists; null: they always are.
  virtual std::shared_ptr<void> gather_parameters() = 0;
  // Nothing for a replicated model.
  virtual std::optional<ShardedModel::Memory> memory() const = 0;
  // Null for a replicated model.
  virtual ShardedModel* sharded() = 0;

  // --- checkpoints: the names are the same for every stage and world size

  // Adds this rank's shards of the weights; rank 0 adds what is not sharded.
  virtual void add_weights_to(checkpoint::Snapshot& snapshot) const = 0;
  // Adds the optimizer's state too.
  virtual void add_to(checkpoint::Snapshot& snapshot, const torch::optim::Optimizer& optimizer) const = 0;
  // ConfigError: another model, and what differs. Collective.
  virtual void restore_weights(const checkpoint::Reader& reader) = 0;
  // ConfigError: another optimizer, and what differs. Collective.
  virtual void restore_optimizer(const checkpoint::Reader& reader, torch::optim::Optimizer& optimizer) = 0;
};

}  // namespace lockstep::parallel
