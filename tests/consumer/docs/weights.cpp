// Inside the function of a rank that has a model, in a folder where its weights lie.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::ReLU(), torch::nn::Linear(16, 3));
  if (world.is_main()) lockstep::save_weights(*model, "weights.pt");
  world.communicator().barrier();
  {
#include DOCS_BLOCK
  }
}
