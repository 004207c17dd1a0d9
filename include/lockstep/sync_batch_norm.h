#pragma once

// Unlike the other headers this one includes LibTorch's modules: SyncBatchNorm is
// one. Programs that define modules have them included anyway.

#include <lockstep/communicator.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>

namespace lockstep {

// BatchNorm over the batch of all ranks: the same output, gradients and running
// statistics as torch::nn::BatchNorm1d, 2d or 3d over the concatenated batch. CPU
// and CUDA. Ranks may have batches of different size, or an empty one.
//
// A forward in training mode runs one all-gather, its backward one all-reduce, and
// both block; so all ranks run the same layers in the same order. The group must
// not be the one that DataParallel reduces gradients with, since both run during
// backward: take a subgroup() of all ranks, one for all layers of a model.
// Evaluation (running statistics) communicates nothing.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // What a BatchNorm holds.
  struct State {
    torch::Tensor weight;
    torch::Tensor bias;
    torch::Tensor running_mean;
    torch::Tensor running_var;
    torch::Tensor num_batches_tracked;
  };

  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator);
  // Takes over the very tensors; undefined ones stay so.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator, State state);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // [batch, features, ...], 2 to 5 dimensions. ConfigError: another shape, or one
  // value per channel over all ranks, which has no variance.
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::BatchNormOptions options;
  // As in torch::nn::BatchNorm: undefined where the options switch them off.
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

// Replaces every BatchNorm1d, 2d and 3d inside the Sequentials of the module, at any
// depth, by a SyncBatchNorm that shares its parameters and buffers, over one new
// group of all ranks. Every rank calls it, before it makes an optimizer and
// DataParallel. Returns how many it replaced.
//
// A BatchNorm that a module of your own holds as a member cannot be replaced from
// outside, because that module calls its member: ConfigError names it; declare the
// member as SyncBatchNorm instead. Nothing is replaced then.
int convert_sync_batch_norm(torch::nn::Module& module, const Communicator& communicator);

}  // namespace lockstep
