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

// What GradientMonitoring writes of one parameter's gradient.
struct GradientStatistics {
  std::string name;
  double mean = 0;
  double deviation = 0;
  double greatest = 0;
  double least = 0;
  at::Tensor values;  // all of them, float64 on the CPU, where they were asked for
};

}  // namespace lockstep

namespace lockstep::train {

// Of gradients times `factor`, a positive number, which all ranks have whole: of the parameters
// that have one.
std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module, double factor,
                                                    bool with_values);

// The same where the ranks have shards of the gradients, or rank 0 all of them. Every rank calls
// it; the result is on rank 0, and empty elsewhere. `device` is where the group's tensors are.
std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module,
                                                    const ShardedModel& model, c10::Device device,
                                                    double factor, bool with_values);

}  // namespace lockstep::train
