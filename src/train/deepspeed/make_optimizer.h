#pragma once

#include <lockstep/deepspeed_config.h>

#include <memory>
#include <vector>

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::deepspeed {

// The optimizer that the configuration names, with one group of these parameters. float32 parameters on
// the CPU get the kernels with one pass over memory (Adam and AdamW without amsgrad, Adagrad, Lion),
// others the class of torch::optim with the same arithmetic. The names in checkpoints are the same.
// REQUIRES: config.exists().
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const DeepSpeedConfig::Optimizer& config,
                                                        const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::deepspeed
