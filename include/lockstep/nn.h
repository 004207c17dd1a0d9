#pragma once

// Layers: fused ones, which do on a GPU in one pass over memory what plain modules do in several, and batch
// normalisation over the batches of all ranks. Parameters, buffers and their names are those of the plain
// modules, so weights and checkpoints can be exchanged. This header includes LibTorch's modules because its
// layers are modules.
//
// Example:
//
//   lockstep::nn::BatchNormRelu norm(lockstep::nn::BatchNormReluOptions(8).dropout(0.1));
//   const torch::Tensor y = norm(torch::randn({2, 8, 4, 4}));
//   std::printf("%.0f\n", lockstep::nn::max_pool_2x2(y).min().item<double>());
//   const int replaced = lockstep::convert_sync_batch_norm(*net, world.communicator());
//   std::printf("%d layers replaced by SyncBatchNorm\n", replaced);
//
// More: docs/models.md, docs/grad.md

#include <lockstep/communicator.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>

namespace lockstep::nn {

// The fused kernels run if liblockstep_cuda.so is found, for float32, float16 and bfloat16 on a GPU of
// compute capability 8.0 or higher, in the layout channels last; BatchNormRelu also needs float32 parameters,
// and in training a momentum, in evaluation that no gradient is needed. Otherwise, and with
// LOCKSTEP_FUSED_KERNELS=0, the plain operations of LibTorch run, with the same bits as the plain modules.
// Fused results are rounded once, where the plain operations round after each.
//
// The fused kernels have no second derivative: ConfigError in backward if one is asked for.

// Whether fused kernels run for images like these: by device, layout and type.
bool is_fused(const torch::Tensor& images);

struct BatchNormReluOptions : torch::nn::BatchNormOptions {
  explicit BatchNormReluOptions(int64_t num_features) : BatchNormOptions(num_features) {}
  // The probability that a value is zeroed in training. Fused kernels round it to a multiple of 1/65536, and
  // draw the mask from LibTorch's generator of the device, but not the same mask as torch::dropout.
  TORCH_ARG(double, dropout) = 0;
};

// torch::nn::BatchNorm2d, ReLU, Dropout, and the sum with the shortcut of a residual block. Fused kernels
// read the input once for the statistics and once to write the output. For backward they keep only the input,
// and compute the masks of ReLU and dropout again.
class BatchNormReluImpl : public torch::nn::NormImplBase<2, BatchNormReluImpl, BatchNormReluOptions> {
 public:
  // ConfigError: dropout is not a probability.
  explicit BatchNormReluImpl(const BatchNormReluOptions& options);

  // dropout(relu(batch_norm(input))) + shortcut + shortcut_bias. The shortcut has the shape of the input, and
  // shortcut_bias has one value for each channel: a convolution on the shortcut leaves its bias to this sum,
  // where it costs nothing. Both may be undefined.
  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& shortcut = {},
                        const torch::Tensor& shortcut_bias = {});

  void pretty_print(std::ostream& stream) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())},
                           {2, torch::nn::AnyValue(torch::Tensor())})
  void _check_input_dim(const torch::Tensor& input) override;
};
TORCH_MODULE(BatchNormRelu);

// torch::nn::LayerNorm, also of the sum of a residual connection. Fused over the last dimension, of at most
// 1792 values, a multiple of 8, with float32 parameters; also in evaluation. Under autocast the fused result
// has autocast's type, into which the next matrix product would convert it.
class LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  explicit LayerNormImpl(const torch::nn::LayerNormOptions& options);

  struct Sum {
    torch::Tensor sum;         // input + branch
    torch::Tensor normalized;  // forward(sum)
  };

  torch::Tensor forward(const torch::Tensor& input);
  Sum add(const torch::Tensor& input, const torch::Tensor& branch);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LayerNormOptions options;
  torch::Tensor weight;
  torch::Tensor bias;
};
TORCH_MODULE(LayerNorm);

struct AttentionOptions {
  double dropout = 0;  // of attention weights
  bool is_causal = false;
};
// torch::scaled_dot_product_attention of [batch, heads, length, size]. On GPUs of compute capability 9.0 or
// higher cuDNN's kernels are the first choice, which are faster than LibTorch's own on Hopper; if they cannot
// do it, LibTorch chooses.
torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                        const AttentionOptions& options = {});

// torch::linear. Fused in 16 bits, also by autocast: the gradients of float32 weights are not rounded to 16
// bits first, and that of the bias is one pass over the gradients.
torch::Tensor linear(const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& bias);

// linear(gelu(linear(input, in_weight, in_bias)), out_weight, out_bias), with the approximation of gelu by
// tanh: the MLP of GPT-2. The weights are [hidden, size] and [size of the result, hidden], as in
// torch::nn::Linear. Fused in 16 bits, also by autocast, if the sizes of in_weight are multiples of 8: gelu
// is computed while the matrix product stores its result, and its gradient together with that of the bias.
torch::Tensor gelu_mlp(const torch::Tensor& input, const torch::Tensor& in_weight,
                       const torch::Tensor& in_bias, const torch::Tensor& out_weight,
                       const torch::Tensor& out_bias);

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;  // rows with this target do not count
  int64_t chunk_rows = 8192;    // rows whose scores are in memory at once
};
// The mean cross entropy of the scores hidden * weight^T: cross_entropy(linear(hidden, weight), targets), for
// heads with many classes. hidden is [rows, size], weight [classes, size], targets [rows] int64. Fused, it
// never stores all scores: forward computes the loss and the gradients that are needed chunk by chunk, in
// autocast's type if autocast is on. A target that is no class gives NaN. ConfigError: other shapes.
torch::Tensor linear_cross_entropy(const torch::Tensor& hidden, const torch::Tensor& weight,
                                   const torch::Tensor& targets,
                                   const LinearCrossEntropyOptions& options = {});

// torch::max_pool2d(input, 2).
torch::Tensor max_pool_2x2(const torch::Tensor& input);

// torch::avg_pool2d(input, size). Fused if the result is one pixel for each image, [batch, channels, 1, 1].
torch::Tensor avg_pool(const torch::Tensor& input, int64_t size);

}  // namespace lockstep::nn

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
