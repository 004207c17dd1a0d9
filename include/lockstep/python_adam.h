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

// Defaults as in torch.optim.Adam.
struct PythonAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

// Adam with the bits of Python's torch.optim.Adam, one parameter group; torch::optim::Adam
// rounds its first moment otherwise. The class of its state is "Adam" too: a checkpoint of
// one goes on with the other. ConfigError names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_python_adam(const std::vector<at::Tensor>& parameters,
                                                          const PythonAdamOptions& options = {});

}  // namespace lockstep
