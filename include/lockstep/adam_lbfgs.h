#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Defaults as in perceptrain.
struct AdamLbfgsOptions {
  int64_t switch_step = 10000;  // steps with Adam; the next ones are LBFGS's
  double adam_lr = 1e-2;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double lbfgs_lr = 1;
  int64_t lbfgs_max_iter = 20;
  int64_t lbfgs_history_size = 100;
  bool strong_wolfe = false;  // LBFGS's line search
};

// Adam first, LBFGS from step switch_step on: an optimizer like any other, with one
// parameter group. Its learning rate is Adam's; LBFGS runs with lbfgs_lr times the same
// ratio to adam_lr, so that a schedule works across the switch.
// optimizer_state() saves and loads it. After the switch step() without closure is a
// ConfigError. ConfigError here names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_adam_lbfgs(const std::vector<at::Tensor>& parameters,
                                                         const AdamLbfgsOptions& options = {});

}  // namespace lockstep
