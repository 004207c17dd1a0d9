// Inside the function of a rank that has a model, an optimizer and data.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

void run(lockstep::World& world, const lockstep::TrainConfig& config) {
  using Layer = lockstep::Sharded<torch::nn::LinearImpl>;
  torch::manual_seed(0);
  const torch::Tensor x = torch::linspace(0, 1, 100).reshape({-1, 1}), y = torch::sin(2 * M_PI * x);
  torch::nn::Sequential net(Layer(1, 16), torch::nn::ReLU(), Layer(16, 1));
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const auto step = [&](const torch::Tensor& input, const torch::Tensor& target) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(input), target).backward();
    optimizer.step();
  };
  const auto save_checkpoint = [&] { lockstep::save_weights(*net, "preempted.pt"); };
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (int64_t first = 0; first < 100; first += 25) {
    batches.emplace_back(x.slice(0, first, first + 25), y.slice(0, first, first + 25));
  }
  {
#include DOCS_BLOCK
  }
}
