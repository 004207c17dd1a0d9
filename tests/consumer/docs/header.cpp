// Inside the function of a rank: the names that the examples of the public headers use.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig& config) {
  torch::manual_seed(0);
  const torch::Tensor x = torch::linspace(0, 1, 64).reshape({-1, 1}), y = torch::sin(2 * M_PI * x);
  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  lockstep::Loader loader(lockstep::TensorDataset{x, y}, {.batch_size = 16});
  {
#include DOCS_BLOCK
  }
}
