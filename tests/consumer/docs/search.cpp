// Inside the function of a rank that has a model and the loss of a model.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  const int rounds = 2;
  torch::nn::Sequential model(torch::nn::Linear(1, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
  const auto evaluate = [x = torch::linspace(0, 1, 20).reshape({-1, 1})](torch::nn::Sequential& net) {
    const torch::NoGradGuard guard;
    return torch::mse_loss(net->forward(x), torch::sin(x)).item<double>();
  };
#include DOCS_BLOCK
}
