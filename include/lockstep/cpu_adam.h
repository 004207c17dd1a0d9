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

// Defaults as in DeepSpeed, where "Adam" too decays as AdamW.
struct CpuAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // false: the decay is added to the gradient
};

// Adam of float32 parameters on the CPU in one pass over memory, in several threads: the bits
// of LibTorch's fused Adam. The class of its state is "AdamW", or "Adam" with adam_w_mode off:
// a checkpoint goes on with the optimizer of torch::optim of that name, and the other way
// round. ConfigError names the option that makes no sense, or a parameter that is not float32
// or not on the CPU.
std::unique_ptr<torch::optim::Optimizer> make_cpu_adam(const std::vector<at::Tensor>& parameters,
                                                       const CpuAdamOptions& options = {});

}  // namespace lockstep
