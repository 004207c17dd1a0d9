#include "support/training.h"

#include <gtest/gtest.h>
#include <lockstep/c10d.h>

#include "comm/plugin.h"
#include "support/rank_threads.h"

namespace lockstep::test {
namespace {

void set_weights(const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  int64_t k = 0;
  for (const torch::Tensor& parameter : model.parameters()) {
    parameter.copy_(
        torch::sin(torch::arange(k, k + parameter.numel(), torch::kFloat64)).reshape(parameter.sizes()));
    k += parameter.numel();
  }
}

torch::Tensor copy_of(const torch::Tensor& tensor) { return tensor.detach().to(torch::kCPU).clone(); }

}  // namespace

TrainConfig quiet_config(const std::filesystem::path& folder) {
  TrainConfig config;
  config.max_iter = 8;
  config.dtype = "float64";
  config.log_folder = folder.string();
  config.tracking_tool = "none";
  config.verbose = false;
  return config;
}

std::shared_ptr<Dataset> Training::dataset() const {
  const auto x = torch::linspace(0, 1, samples, torch::kFloat64).reshape({-1, 1});
  return std::make_shared<TensorDataset>(std::vector<torch::Tensor>{x, torch::sin(2 * M_PI * x)});
}

Model Training::default_model() const {
  if (batch_norm) {
    return torch::nn::Sequential(torch::nn::Linear(1, 16), torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                                 torch::nn::Linear(16, 1));
  }
  return torch::nn::Sequential(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Dropout(dropout),
                               torch::nn::Linear(16, 1));
}

Training::Outcome Training::run() const {
  std::vector<Outcome> all(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    RankMap map;
    map.rank = rank;
    map.world_size = ranks;
    // As join_world() does it.
    if (config.cuda_graph && device.is_cuda()) comm::use_own_cuda_stream(device.index());
    const std::string backend = device.is_cpu() ? "shm" : "auto";
    World world(map, make_communicator(std::move(store), rank, ranks, {.backend = backend}), device);
    all[static_cast<size_t>(rank)] = run_rank(world);
  });
  for (const Outcome& one : all) expect_equal_weights(one, all[0]);
  return all[0];
}

Training::Outcome Training::run_rank(World& world) const {
  const Model model = make_model ? make_model() : default_model();
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(*model.module())) parameters.push_back(parameter);
  set_weights(*model.module());
  const auto optimizer = make_optimizer ? make_optimizer(parameters)
                                        : std::make_unique<torch::optim::SGD>(
                                              parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  TrainConfig own = config;
  if (make_callbacks) own.callbacks = make_callbacks();
  Trainer trainer(world, model, *optimizer, own, loss);
  if (prepare) prepare(trainer);
  const Loader data(dataset(), loader);
  Outcome outcome;
  outcome.result = fit ? fit(trainer, data) : trainer.fit(data);
  const auto whole = trainer.gather_parameters();
  for (const torch::Tensor& parameter : parameters) outcome.weights.push_back(copy_of(parameter));
  for (const torch::Tensor& buffer : model.module()->buffers()) outcome.weights.push_back(copy_of(buffer));
  return outcome;
}

void expect_equal_weights(const Training::Outcome& a, const Training::Outcome& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(torch::equal(a.weights[i], b.weights[i])) << "parameter " << i;
  }
}

void expect_close_weights(const Training::Outcome& a, const Training::Outcome& b, double tolerance) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a.weights[i], b.weights[i], tolerance, tolerance / 10)) << "parameter " << i;
  }
}

}  // namespace lockstep::test
