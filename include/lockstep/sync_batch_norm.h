#pragma once

// Batch normalisation over the batches of all ranks, for small batches on each rank. This header
// includes LibTorch's modules because SyncBatchNorm is a module.
//
// Example:
//
//   torch::nn::Sequential model(torch::nn::Linear(1, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
//   const int replaced = lockstep::convert_sync_batch_norm(*model, world.communicator());
//   lockstep::DataParallel parallel(model, world.communicator());
//   std::printf("%d layers replaced\n", replaced);
//
// More: docs/grad.md

#include <lockstep/communicator.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>

namespace lockstep {

// BatchNorm over the batch of all ranks: output, gradients and running statistics are those of
// torch::nn::BatchNorm1d, 2d or 3d over the concatenated batch. CPU and CUDA. Ranks may have batches of
// different sizes, or an empty batch.
//
// Collective in training mode: forward runs one all-gather, its backward one all-reduce, and both
// block. So all ranks run the same layers in the same order. DataParallel must not use the same group
// for gradients, because both communicate during backward: use one subgroup() of all ranks for all
// layers of a model. Evaluation uses the running statistics and does not communicate.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // The tensors of a BatchNorm.
  struct State {
    torch::Tensor weight;
    torch::Tensor bias;
    torch::Tensor running_mean;
    torch::Tensor running_var;
    torch::Tensor num_batches_tracked;
  };

  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator);
  // Uses the given tensors themselves, not copies; undefined ones stay undefined.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator, State state);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // [batch, features, ...], 2 to 5 dimensions. ConfigError: another shape, or only one value for each
  // channel over all ranks, which has no variance.
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::BatchNormOptions options;
  // As in torch::nn::BatchNorm: undefined if the options switch them off.
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor running_mean;
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  void adopt(State state);
  double next_momentum();

  Communicator communicator_;
};

TORCH_MODULE(SyncBatchNorm);

// Replaces every BatchNorm1d, 2d and 3d inside the Sequentials of the module, at any depth, by a
// SyncBatchNorm that shares its parameters and buffers, over one new group of all ranks. Returns how
// many layers were replaced. Collective. Call it before you make the optimizer and DataParallel.
//
// ConfigError: a module of your own has a BatchNorm as a member, which cannot be replaced from outside
// because the module calls its member. The error names it; declare the member as SyncBatchNorm instead.
// Nothing is replaced then.
int convert_sync_batch_norm(torch::nn::Module& module, const Communicator& communicator);

}  // namespace lockstep
