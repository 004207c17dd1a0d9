#pragma once

#include <lockstep/model.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Ready models. Each has the layers, the names and the order of parameters and buffers of
// its Python original, runs the same operations, and draws its first weights in the same
// order: after torch::manual_seed(s) they are those of torch.manual_seed(s) in Python.
//
// A size that makes no sense is a ConfigError when the model is made, an input of another
// shape one when it is called. A model is in training mode at first and on the CPU.

enum class Activation { kRelu, kGelu, kTanh };

// Linear layers with the activation between them: sizes {1, 16, 1} is one hidden layer of
// 16. The names are those of Python's nn.Sequential: "0.weight", "2.weight".
Model mlp(const std::vector<int64_t>& sizes, Activation activation = Activation::kRelu);

// Princeton's network for MNIST: images [N, 1, 28, 28] to the logarithms of 10
// probabilities, for nll_loss. 1,199,882 parameters.
struct PrincetonCnnOptions {
  double conv_dropout = 0.25;
  double fc_dropout = 0.5;
};
Model princeton_cnn(const PrincetonCnnOptions& options = {});

// Sigma2's Wide ResNet for CIFAR: images [N, channels, 32, 32] to [N, classes], not
// normalised. Any height and width from 28 to 55 do. 17,175,444 parameters as it is here.
// Channels-last inputs stay so up to the last pooling.
struct WideResNetOptions {
  int64_t classes = 100;
  int64_t channels = 3;
  int64_t widen_factor = 10;  // stages of 16, 32 and 64 times this width
  double dropout = 0.01;
};
Model wide_resnet(const WideResNetOptions& options = {});

// torchvision's VisionTransformer: images [N, 3, image_size, image_size] to [N, classes],
// not normalised. As it is here it is vit_b_16 with 86,567,656 parameters.
struct VisionTransformerOptions {
  int64_t image_size = 224;  // a multiple of patch_size
  int64_t patch_size = 16;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t hidden_size = 768;  // a multiple of heads
  int64_t mlp_size = 3072;
  int64_t classes = 1000;
  double dropout = 0;
  double attention_dropout = 0;

  // "tiny" (5,717,416 parameters), "small" (22,050,664) or "base", for patches of 16 in
  // images of 224 and 1000 classes. ConfigError: another name.
  static VisionTransformerOptions preset(std::string_view name);
};
Model vision_transformer(const VisionTransformerOptions& options = {});

// load_weights() for a vision transformer: also takes the names that torchvision's
// published files still have ("mlp.linear_1.weight" for "mlp.0.weight").
LoadedWeights load_vision_transformer(const Model& model, const std::filesystem::path& file,
                                      const LoadWeightsOptions& options = {});

}  // namespace lockstep::models
