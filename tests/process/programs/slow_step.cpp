// Trains on one rank. The first step takes until standard input ends.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.compute_setup = "cpu", .max_iter = 3};
  return lockstep::launch(argc, argv, defaults,
                          [](lockstep::World& world, const lockstep::TrainConfig& config) {
                            torch::nn::Sequential net(torch::nn::Linear(1, 1));
                            torch::optim::SGD optimizer(net->parameters(), 0.1);
                            const auto wait = [](const lockstep::Batch& batch,
                                                 const lockstep::Model& model) -> lockstep::LossResult {
                              while (std::getchar() != EOF) continue;
                              return lockstep::mse(batch, model);
                            };
                            lockstep::Trainer trainer(world, net, optimizer, config, wait);
                            const lockstep::TensorDataset samples{torch::zeros({8, 1}), torch::zeros({8, 1})};
                            trainer.fit(lockstep::Loader(samples, {.batch_size = 2}));
                          });
}
