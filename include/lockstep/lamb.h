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

// Names and defaults as in DeepSpeed.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  // Bounds of |parameter| / |update|, by which each parameter's step is multiplied.
  double max_coeff = 10;
  double min_coeff = 0.01;
};

// LAMB (You et al. 2019) with DeepSpeed's arithmetic, one parameter group, on any device; the
// parameters of a group are on one device. optimizer_state() saves and loads it. ConfigError
// names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_lamb(const std::vector<at::Tensor>& parameters,
                                                   const LambOptions& options = {});

}  // namespace lockstep
