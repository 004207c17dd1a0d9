// A physics-informed network: the heat equation u_t = k u_xx on a rod whose ends are cold, from the start
// u(0, x) = sin(pi x). The exact solution is exp(-pi^2 k t) sin(pi x). Points are kept where the equation
// is violated, and drawn again elsewhere (R3).
//
//   heat --nprocs 2
//
// Expected output, with losses that depend on the machine:
//
//   P  0|cpu    | Iteration     300| Train_Loss: 0.00... -
//   ...
//   Relative error: 0.0...
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

namespace {

constexpr double kConductivity = 0.1;
constexpr int64_t kPoints = 256;

// Points are rows of (t, x) in the unit square.
torch::Tensor random_points(int64_t count, uint64_t seed) {
  return torch::rand({count, 2}, torch::make_generator<at::CPUGeneratorImpl>(seed));
}

torch::Tensor column(const torch::Tensor& points, int64_t i) { return points.narrow(1, i, 1); }

torch::Tensor heat_equation(const torch::Tensor& points, const lockstep::Model& u) {
  const torch::Tensor first = lockstep::derivative(u(points), points);
  const torch::Tensor second = lockstep::derivative(column(first, 1), points);
  return column(first, 0) - kConductivity * column(second, 1);
}

torch::Tensor start(const torch::Tensor& points, const lockstep::Model& u) {
  return u(points) - torch::sin(M_PI * column(points, 1));
}

torch::Tensor cold_ends(const torch::Tensor& points, const lockstep::Model& u) { return u(points); }

// The largest relative error of rows of points, in the Euclidean norm.
double relative_error(const lockstep::Model& u) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor line = torch::linspace(0, 1, 41);
  const torch::Tensor points = torch::cartesian_prod({line, line});
  const torch::Tensor exact =
      torch::exp(-M_PI * M_PI * kConductivity * column(points, 0)) * torch::sin(M_PI * column(points, 1));
  return ((u(points) - exact).norm() / exact.norm()).item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.max_iter = 600, .seed = 1, .print_every = 100};
  return lockstep::launch(argc, argv, defaults, [](lockstep::World& world, lockstep::TrainConfig config) {
    const auto inside = std::make_shared<lockstep::R3Dataset>(random_points, kPoints, 0.02);
    torch::Tensor at_start = random_points(kPoints, 1);
    at_start.select(1, 0).zero_();
    torch::Tensor at_ends = random_points(kPoints, 2);
    at_ends.select(1, 1).round_();

    torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                              torch::nn::Tanh(), torch::nn::Linear(32, 1));
    torch::optim::Adam optimizer(net->parameters(), 4e-3);
    config.callbacks = {std::make_shared<lockstep::R3Sampling>(
                            inside,
                            [](const torch::Tensor& points, const lockstep::Model& u) {
                              return heat_equation(points, u).abs();
                            },
                            20),
                        std::make_shared<lockstep::ScheduleLearningRate>(
                            lockstep::cosine_annealing({.t_max = config.max_iter}))};

    lockstep::Trainer trainer(
        world, net, optimizer, config,
        lockstep::residual_loss({{"equation", heat_equation}, {"start", start}, {"ends", cold_ends}}));
    const lockstep::LoaderOptions batches{.batch_size = kPoints / world.size(), .shuffle = true};
    const lockstep::Loader equation(inside, batches);
    const lockstep::Loader start_points(lockstep::TensorDataset{at_start}, batches);
    const lockstep::Loader end_points(lockstep::TensorDataset{at_ends}, batches);
    trainer.fit(std::map<std::string, const lockstep::Loader*>{
        {"equation", &equation}, {"start", &start_points}, {"ends", &end_points}});
    trainer.print("Relative error: " + std::to_string(relative_error(net)));
  });
}
