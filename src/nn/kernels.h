#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace lockstep::nn {

// The fused kernels of a device, behind tensors. src/cuda implements them; src/nn has their plain twins.
// Everything runs on the current stream of the input's device, and the host waits for nothing.
//
// REQUIRES of all images: [batch, channels, height, width], not empty, contiguous in the layout channels
// last, float32, float16 or bfloat16, with at most kMaxChannels channels.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // 10 * major + minor of a CUDA device: 90 for Hopper.
  virtual int compute_capability(c10::DeviceIndex index) const = 0;

  // Parameters and buffers of a BatchNorm in training. float32; buffers may be undefined.
  struct Norm {
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;
    double momentum = 0.1;
    double eps = 1e-5;
    double dropout = 0;
  };
  // What backward needs in addition to the input.
  struct NormResult {
    at::Tensor output;
    at::Tensor statistics;  // float32 [4, channels]
    at::Tensor key;         // of the dropout's mask; undefined without dropout
  };
  // dropout(relu(norm(input))) + shortcut + shortcut_bias; the last two may be undefined. Updates the running
  // statistics.
  virtual NormResult batch_norm_relu(const at::Tensor& input, const Norm& norm, const at::Tensor& shortcut,
                                     const at::Tensor& shortcut_bias) const = 0;

  // relu(input * scale + shift) + shortcut + shortcut_bias, with one scale and shift for each channel,
  // float32: batch norm in evaluation.
  virtual at::Tensor scale_relu(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& shift,
                                const at::Tensor& shortcut, const at::Tensor& shortcut_bias) const = 0;

  struct NormGradients {
    at::Tensor input;  // undefined unless it was asked for, as shortcut_bias
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor shortcut_bias;
  };
  virtual NormGradients batch_norm_relu_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                 const at::Tensor& statistics, const at::Tensor& key,
                                                 double dropout, bool with_input,
                                                 bool with_shortcut_bias) const = 0;

  struct PoolResult {
    at::Tensor output;
    at::Tensor place;  // of the largest value in its window, uint8
  };
  virtual PoolResult max_pool_2x2(const at::Tensor& input) const = 0;
  virtual at::Tensor max_pool_2x2_backward(const at::Tensor& gradient, const at::Tensor& place,
                                           int64_t height, int64_t width) const = 0;

  // The longest row of a layer norm; its length is a multiple of 8.
  static constexpr int64_t kMaxNormalized = 1792;
  // Layer norm over the last dimension of input + branch, which may be undefined; then `sum` is the input.
  // The output is of type `type`, the branch's. REQUIRES: tensors for which is_vectors() holds, float32
  // parameters, and an input that is float32 or of type `type`.
  struct LayerNormResult {
    at::Tensor sum;
    at::Tensor output;
    at::Tensor statistics;
  };
  virtual LayerNormResult layer_norm(const at::Tensor& input, const at::Tensor& branch,
                                     const at::Tensor& weight, const at::Tensor& bias, double eps,
                                     at::ScalarType type) const = 0;
  struct LayerNormGradients {
    at::Tensor input;
    at::Tensor branch;  // undefined unless it was asked for
    at::Tensor weight;
    at::Tensor bias;
  };
  // sum_gradient may be undefined. REQUIRES: tensors for which is_vectors() holds.
  virtual LayerNormGradients layer_norm_backward(const at::Tensor& gradient, const at::Tensor& sum_gradient,
                                                 const at::Tensor& sum, const at::Tensor& weight,
                                                 const at::Tensor& statistics, bool with_branch) const = 0;

  // gelu(input * weight^T + bias) with the approximation by tanh, and the argument of gelu, which backward
  // needs. REQUIRES: tensors on one device for which is_vectors() holds, not empty, all float16 or all
  // bfloat16: [rows, inputs], [outputs, inputs] and [outputs], with inputs and outputs multiples of 8.
  struct GeluResult {
    at::Tensor before;
    at::Tensor output;
  };
  virtual GeluResult linear_gelu(const at::Tensor& input, const at::Tensor& weight,
                                 const at::Tensor& bias) const = 0;
  // Multiplies the gradient of the output by the derivative of gelu at `before`, in place, and returns the
  // gradient of the bias: the float32 sum of it over the rows. REQUIRES: contiguous, [rows, outputs], of one
  // type.
  virtual at::Tensor gelu_backward(at::Tensor& gradient, const at::Tensor& before) const = 0;
  // The float32 sums over the rows of a contiguous matrix: the gradient of a bias.
  virtual at::Tensor column_sums(const at::Tensor& matrix) const = 0;

  // losses = the cross entropy of each row of scores, float32; 0 where the target is `ignored`. With a
  // gradient, that of the sum of the losses replaces the scores. REQUIRES: contiguous tensors on one device,
  // int64 targets.
  virtual void cross_entropy(at::Tensor& scores, const at::Tensor& targets, int64_t ignored,
                             const at::Tensor& losses, bool with_gradient) const = 0;

  // The mean of the first size x size pixels of each image.
  virtual at::Tensor corner_mean(const at::Tensor& input, int64_t size) const = 0;
  virtual at::Tensor corner_mean_backward(const at::Tensor& gradient, int64_t size, int64_t height,
                                          int64_t width) const = 0;
};

// What liblockstep_cuda.so exports.
using PluginKernels = const Kernels*();
inline constexpr char kPluginKernels[] = "lockstep_kernels";

// LOCKSTEP_FUSED_KERNELS: 0 turns the fused kernels off.
inline constexpr char kFusedKernels[] = "LOCKSTEP_FUSED_KERNELS";

// The kernels for tensors of this device, or null: it is not a GPU that they were compiled for, there is no
// plugin, or they are switched off.
const Kernels* kernels_on(const c10::Device& device);
// The kernels for images like this one, or null: the plain operations run.
const Kernels* kernels_for(const at::Tensor& images);
// In backward of a fused function: ConfigError if autograd records it for a second derivative, which the
// kernels do not have.
void refuse_second_derivative(const char* layer);
// The type in which matrix products of this tensor run: autocast's on a GPU, or its own, as that of float64
// always.
at::ScalarType type_of_products(const at::Tensor& input);
// The kernels of the plugin; null: there is none, or they are switched off. For backward of a fused function.
const Kernels* loaded_kernels();
// 10 * major + minor of a CUDA device; 0: another device, or there is no plugin, which would know it.
int compute_capability(const c10::Device& device);
// Whether the kernels have machine code for this compute capability.
bool can_run_on(int capability);

// Whether a tensor is contiguous and at a multiple of 16 bytes, the vectors that kernels load.
bool is_vectors(const at::Tensor& tensor);
// The tensor, or a copy for which is_vectors() holds.
at::Tensor as_vectors(const at::Tensor& tensor);
// values * factor, which has one value, in float32, rounded once to `type`.
at::Tensor scaled(const at::Tensor& values, const at::Tensor& factor, at::ScalarType type);

}  // namespace lockstep::nn
