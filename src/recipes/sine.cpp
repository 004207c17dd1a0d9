#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <cmath>

#include "recipes/recipe.h"

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

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
}

void train_sine(World& world, const TrainConfig& config, double lr) {
  const auto x = torch::linspace(0, 1, kSamples).reshape({-1, 1});
  const auto y = torch::sin(2 * M_PI * x);
  torch::nn::Sequential model = make_model();
  torch::optim::SGD optimizer(model->parameters(), lr);
  Trainer trainer(world, model, optimizer, config, mse);
  trainer.fit(Loader(TensorDataset({x, y}), {.batch_size = kBatchSize, .shuffle = true}));
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
  own.description = "Fits sin(2 pi x) with a network of one hidden layer.";
  const TrainConfig config = TrainConfig::from_args(argc, argv, defaults(), own);
  return launch(config, [&](World& world) { train_sine(world, config, lr); });
}

}  // namespace lockstep::recipes
