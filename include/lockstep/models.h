#pragma once

// Ready models: a multilayer perceptron, two convolutional networks, the vision transformer and GPT-2.
// Names and order of parameters and buffers are those of the Python originals, so weights can be
// exchanged with Python.
//
// Example:
//
//   torch::manual_seed(0);
//   const lockstep::Model mlp = lockstep::models::mlp({1, 16, 1});
//   torch::optim::SGD sgd(mlp.module()->parameters(), 0.01);
//   lockstep::Trainer(world, mlp, sgd, config).fit(loader);
//
// More: docs/models.md

#include <lockstep/model.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace lockstep::models {

// All models run the same operations as their Python originals and draw their initial weights in the
// same order: after torch::manual_seed(s) the weights are those of torch.manual_seed(s) in Python.
//
// A new model is on the CPU and in training mode. ConfigError: a size that is not possible, when the
// model is made; an input of another shape, when it is called.

enum class Activation { kRelu, kGelu, kTanh };

// Linear layers with the activation between them: sizes {1, 16, 1} has one hidden layer of 16.
// Parameter names are those of Python's nn.Sequential: "0.weight", "2.weight".
Model mlp(const std::vector<int64_t>& sizes, Activation activation = Activation::kRelu);

// The network of Princeton's MNIST script: images [N, 1, 28, 28] to the log-probabilities of 10
// classes, for nll_loss. 1,199,882 parameters.
struct PrincetonCnnOptions {
  double conv_dropout = 0.25;
  double fc_dropout = 0.5;
};
Model princeton_cnn(const PrincetonCnnOptions& options = {});

// The Wide ResNet of Sigma2's CIFAR page: images [N, channels, 32, 32] to scores [N, classes], for
// cross_entropy. Height and width may be 28 to 55. 17,175,444 parameters with the defaults.
// Channels-last inputs keep that layout up to the last pooling.
struct WideResNetOptions {
  int64_t classes = 100;
  int64_t channels = 3;
  int64_t widen_factor = 10;  // the stages have 16, 32 and 64 times this many channels
  double dropout = 0.01;
};
Model wide_resnet(const WideResNetOptions& options = {});

// torchvision's VisionTransformer: images [N, 3, image_size, image_size] to scores [N, classes], for
// cross_entropy. The defaults are vit_b_16 with 86,567,656 parameters.
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

  // "tiny" (5,717,416 parameters), "small" (22,050,664) or "base", with patches of 16, images of 224
  // and 1000 classes. ConfigError: another name.
  static VisionTransformerOptions preset(std::string_view name);
};
Model vision_transformer(const VisionTransformerOptions& options = {});

// load_weights() for a vision transformer. Also accepts the names in torchvision's published files
// ("mlp.linear_1.weight" for "mlp.0.weight").
LoadedWeights load_vision_transformer(const Model& model, const std::filesystem::path& file,
                                      const LoadWeightsOptions& options = {});

// GPT-2 without dropout: tokens [N, length], integers below `vocabulary`, to scores [N, length,
// vocabulary] of the next token at each place. length is 1 to `context`. The defaults are the smallest
// GPT-2, with 124,439,808 parameters.
//
// The names of the parameters are those of Hugging Face's GPT2LMHeadModel, the matrices are those of
// Linear layers: transposed to Hugging Face's. The head is the embedding of the tokens,
// "transformer.wte.weight". Initial weights are normal with a standard deviation of 0.02, of the
// projections back into the residual stream 0.02 / sqrt(2 layers), drawn in the order of the parameters.
struct GptOptions {
  int64_t vocabulary = 50257;
  int64_t context = 1024;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t hidden_size = 768;  // a multiple of heads

  // "124M", "355M", "774M" or "1558M", which are GPT-2, or "tiny" (842,496 parameters, a context of 128
  // and a vocabulary of 256 for bytes). ConfigError: another name.
  static GptOptions preset(std::string_view name);
  // Those of weights with Hugging Face's names, if each head has 64 elements, as in GPT-2. ConfigError: a
  // tensor is missing or has another shape.
  static GptOptions of_weights(const NamedTensors& weights);
};
Model gpt(const GptOptions& options = {});

// The mean cross entropy of a gpt() for the tokens [N, length] that follow `tokens`. The same as
// cross_entropy(model(tokens)), but on a GPU not all scores are stored: see nn::linear_cross_entropy().
// ConfigError: another model.
at::Tensor gpt_loss(const Model& model, const at::Tensor& tokens, const at::Tensor& next_tokens);

// Copies weights into a gpt(): those of Hugging Face (*.safetensors, *.bin), or a checkpoint or a weights
// file of such a model. Both layouts of the matrices, and names with and without "transformer.". Dtypes
// are converted. ConfigError: the file is of another model; nothing is copied then.
void load_gpt(const Model& model, const std::filesystem::path& file);
// Writes config.json and model.safetensors into the folder, which is made if it does not exist. Python:
// GPT2LMHeadModel.from_pretrained(folder). Not collective: call it on one rank.
void save_gpt(const Model& model, const std::filesystem::path& folder);

}  // namespace lockstep::models
