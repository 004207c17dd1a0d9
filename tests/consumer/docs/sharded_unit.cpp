// Beside the functions of a program: the fragment declares Block, which is trained at stage 3.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include DOCS_BLOCK

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  Block first, second;
  torch::nn::Sequential net(first, second);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  lockstep::ShardedModel model(net.ptr(), optimizer, world.communicator(),
                               {.zero = {.stage = 3, .persistence_threshold = 0}});
  model.zero_grad();
  model.prepare_forward();
  net->forward(torch::ones({2, 64})).sum().backward();
  model.step();
}
