#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <cmath>
#include <optional>

#include "recipes/recipe.h"
#include "recipes/tensor_data.h"

namespace lockstep::recipes {
namespace {

constexpr int64_t kSamples = 100;
constexpr int64_t kBatchSize = 16;

TrainConfig defaults() {
  TrainConfig config;
  config.max_iter = 50;
  config.print_every = 5;
  config.run_name = "sine";
  return config;
}

torch::nn::Sequential make_model(int64_t inputs = 1, int64_t outputs = 1) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, outputs));
}

TensorDataset sine_curve() {
  const auto x = torch::linspace(0, 1, kSamples).reshape({-1, 1});
  return TensorDataset({x, torch::sin(2 * M_PI * x)});
}

// The numbers of a sample; the network takes and gives rows of numbers.
int64_t width_of(const at::Tensor& sample, const char* flag) {
  if (sample.dim() == 1 && sample.is_floating_point()) return sample.numel();
  throw ConfigError("train", fmt::format("--{} must be a table of floating-point numbers, one row for each "
                                         "sample: a sample is {} of {} dimension(s)",
                                         flag, c10::toString(sample.scalar_type()), sample.dim()));
}

void train_sine(World& world, const TrainConfig& config, double lr, const TensorDataOptions& tensors) {
  std::optional<TensorDataset> train;
  std::optional<TensorDataset> validation;
  int64_t inputs = 0;
  int64_t outputs = 0;
  on_every_rank(world.communicator(), [&] {
    train = tensors.given() ? tensor_dataset(tensors, Split::kTrain) : sine_curve();
    if (tensors.has_validation()) validation = tensor_dataset(tensors, Split::kTest);
    const Example first = train->get(0, 0);
    if (first.size() != 2)
      throw ConfigError("train", "this recipe has one input: give one file with --inputs");
    inputs = width_of(first[0], "inputs");
    outputs = width_of(first[1], "targets");
  });
  torch::nn::Sequential model = make_model(inputs, outputs);
  torch::optim::SGD optimizer(model->parameters(), lr);
  Trainer trainer(world, model, optimizer, config, mse);
  const Loader batches(*train, {.batch_size = kBatchSize, .shuffle = true});
  if (validation) {
    trainer.fit(batches, Loader(*validation, {.batch_size = kBatchSize}));
  } else {
    trainer.fit(batches);
  }
  trainer.write_report();
}

}  // namespace

std::string sine_defaults() {
  return fmt::format("--epochs {} --batch-size {} --lr 0.01", defaults().max_iter, kBatchSize);
}

RecipeModel sine_model(const std::string& size) {
  require_no_size("sine", size);
  const torch::nn::Sequential model = make_model();
  return {
      .model = model,
      .optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.01)),
      .sample_shape = {1},
      .batch_size = kBatchSize,
      .global_batch_size = 0};
}

int run_sine(int argc, const char* const* argv) {
  double lr = 0.01;
  std::string data = "synthetic";
  // LOCKSTEP_DATA is about images; here there is nothing to choose.
  ProgramOptions own = {
      {"lr", lr, "learning rate of SGD"},
      {"data", data, "the samples are computed", {.choices = {"synthetic"}, .has_variable = false}}};
  TensorDataOptions tensors;
  tensors.add_to(own);
  own.description = "Fits sin(2 pi x), or tables of numbers, with a network of one hidden layer.";
  const TrainConfig config = TrainConfig::from_args(argc, argv, defaults(), own);
  return launch(config, [&](World& world) { train_sine(world, config, lr, tensors); });
}

}  // namespace lockstep::recipes
