// Fits sin(2 pi x) with a small network, on as many processes as you like.
//
//   build/bin/sine --nprocs 2
//   torchrun --no-python --nproc-per-node 2 build/bin/sine
//   mpirun -n 2 build/bin/sine
//
// prints a line every five epochs, from rank 0:
//
//   P  0|cpu    | Iteration       5| Train_Loss: 0.4368044 -
//   ...
//   Trained 50 epochs (200 steps) on 2 ranks in 0.03 s: final loss 0.2031453
//   Run folder: ./runs/sine_20261115T031500_1a2b

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.max_iter = 50, .print_every = 5};
  return lockstep::launch(
      argc, argv, defaults, [](lockstep::World& world, const lockstep::TrainConfig& config) {
        const auto x = torch::linspace(0, 1, 100).reshape({-1, 1});
        const auto y = torch::sin(2 * M_PI * x);
        torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
        torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.01);
        lockstep::Trainer trainer(world, model, optimizer, config, lockstep::mse);
        trainer.fit(lockstep::Loader(lockstep::TensorDataset({x, y}), {.batch_size = 16, .shuffle = true}));
      });
}
