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

// lr, eps and weight_decay default as in DeepSpeed, the rest is torch.optim.Adagrad's.
struct CpuAdagradOptions {
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
};

// torch.optim.Adagrad to rounding, of float32 parameters on the CPU, in one pass over memory
// and in several threads. The class of its state is "Adagrad": a checkpoint goes on with
// torch::optim::Adagrad, and the other way round. ConfigError as make_cpu_adam.
std::unique_ptr<torch::optim::Optimizer> make_cpu_adagrad(const std::vector<at::Tensor>& parameters,
                                                          const CpuAdagradOptions& options = {});

}  // namespace lockstep
