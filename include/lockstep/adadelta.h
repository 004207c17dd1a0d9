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

// Defaults as in torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};

// torch.optim.Adadelta, which LibTorch lacks, with one parameter group and the same bits.
// optimizer_state() saves and loads it. ConfigError names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_adadelta(const std::vector<at::Tensor>& parameters,
                                                       const AdadeltaOptions& options = {});

}  // namespace lockstep
