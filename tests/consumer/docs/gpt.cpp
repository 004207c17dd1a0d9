// Inside the function of a rank, in a folder where the weights of a GPT-2 lie.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  if (world.is_main()) {
    lockstep::models::save_gpt(lockstep::models::gpt(lockstep::models::GptOptions::preset("tiny")), "gpt2");
  }
  world.communicator().barrier();
#include DOCS_BLOCK
}
