#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

class ShardedModel;

// Statistics of one parameter's gradient, as GradientMonitoring writes them.
struct GradientStatistics {
  std::string name;
  double mean = 0;
  double deviation = 0;
  double greatest = 0;
  double least = 0;
  at::Tensor values;  // all values, float64 on the CPU, if requested
};

}  // namespace lockstep

namespace lockstep::train {

// Statistics of the gradients times `factor`, a positive number, for parameters that have a gradient.
// All ranks have complete gradients.
std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module, double factor,
                                                    bool with_values);

// The same if the gradients are sharded, or complete on rank 0 only. Collective; the result is on rank
// 0, and empty elsewhere. `device` is where the group's tensors are.
std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module,
                                                    const ShardedModel& model, c10::Device device,
                                                    double factor, bool with_values);

}  // namespace lockstep::train
