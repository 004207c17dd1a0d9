// A program with tensors and a group of one rank.
#include <lockstep/communicator.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  lockstep::Communicator world;
  auto x = torch::ones({4});
  std::printf("sum %g\n", x.sum().item<double>());
  return 0;
}
