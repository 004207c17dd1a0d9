#pragma once

#include <memory>
#include <vector>

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Defaults as in DeepSpeed, but for lr, which is the paper's: Lion moves every weight by lr.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // of the weights themselves, not of the gradient
};

// Lion (Chen et al. 2023), one parameter group. float32 parameters on the CPU are stepped in
// one pass over memory and in several threads, others by LibTorch's operations, on any
// device. optimizer_state() saves and loads it. ConfigError names the option that makes no
// sense.
std::unique_ptr<torch::optim::Optimizer> make_lion(const std::vector<at::Tensor>& parameters,
                                                   const LionOptions& options = {});

}  // namespace lockstep
