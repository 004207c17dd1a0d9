// Inside a function that has a vision transformer, in a folder where its weights lie.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  const lockstep::Model vit = lockstep::models::vision_transformer(
      {.image_size = 32, .layers = 1, .heads = 2, .hidden_size = 16, .mlp_size = 32, .classes = 10});
  if (world.is_main()) lockstep::save_weights(*vit.module(), "vit_b_16-c867db91.pth");
  world.communicator().barrier();
#include DOCS_BLOCK
}
