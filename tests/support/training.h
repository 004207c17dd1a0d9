#pragma once

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

// A small training that a test changes where it needs to: y = sin(2 pi x), an MLP.
struct Training {
  using MakeOptimizer =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor> parameters)>;

  int ranks = 1;
  c10::Device device{c10::kCPU};  // another one with one rank only
  int64_t samples = 64;
  LoaderOptions loader = {.batch_size = 16, .shuffle = true};
  double dropout = 0;  // with one rank only: threads share a generator
  bool batch_norm = false;
  std::function<Model()> make_model;  // instead of the MLP: [n, 1] to [n, 1]
  TrainConfig config;
  Loss loss = mse;
  MakeOptimizer make_optimizer;
  // Of each rank its own, as in a real job.
  std::function<std::vector<std::shared_ptr<Callback>>()> make_callbacks;
  // Runs on each rank before fit(), and instead of it where `fit` is given.
  std::function<void(Trainer&)> prepare;
  std::function<FitResult(Trainer&, const Loader&)> fit;

  struct Outcome {
    FitResult result;
    std::vector<torch::Tensor> weights;  // and buffers, on the CPU
  };
  // Ranks as threads. All ranks end with equal weights, or the test fails. Throws what
  // the first rank threw.
  Outcome run() const;
  // As this rank of a job, in a process of its own; `ranks` and `device` are the world's.
  Outcome run_rank(World& world) const;

  std::shared_ptr<Dataset> dataset() const;

 private:
  Model default_model() const;
};

// Eight epochs, float64, silent, trackers off, everything in this folder.
TrainConfig quiet_config(const std::filesystem::path& folder);

void expect_equal_weights(const Training::Outcome& a, const Training::Outcome& b);
void expect_close_weights(const Training::Outcome& a, const Training::Outcome& b, double tolerance = 1e-11);

}  // namespace lockstep::test
