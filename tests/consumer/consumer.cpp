// A program with tensors and a group of one rank.
#include <lockstep/communicator.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  lockstep::Communicator world;
  auto x = torch::ones({4});
  world.all_reduce(x).wait();
  std::printf("rank %d of %d: sum %g\n", world.rank(), world.size(), x.sum().item<double>());
  return x.sum().item<double>() == 4 ? 0 : 1;
}
