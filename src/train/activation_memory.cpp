#include "train/activation_memory.h"

#include <lockstep/model.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>

#include "torch_private/autograd_node.h"
#include "train/counted_memory.h"

namespace lockstep::train {
namespace {

using torch::autograd::variable_list;

// Forgets each gradient as soon as it is there: gradients are states, not activations.
class ForgetGradient final : public torch::autograd::FunctionPostHook {
 public:
  explicit ForgetGradient(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    parameter_.mutable_grad().reset();
    return outputs;
  }

 private:
  at::Tensor parameter_;
};

class WithoutGradients {
 public:
  explicit WithoutGradients(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      if (!parameter.requires_grad()) continue;
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      const auto key = accumulator->add_post_hook(std::make_unique<ForgetGradient>(parameter));
      hooks_.emplace_back(std::move(accumulator), key);
    }
  }
  ~WithoutGradients() {
    for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
  }
  WithoutGradients(const WithoutGradients&) = delete;
  WithoutGradients& operator=(const WithoutGradients&) = delete;

 private:
  std::vector<std::pair<torch_private::NodePtr, uintptr_t>> hooks_;
};

struct Measured {
  int64_t kept = 0;
  int64_t peak = 0;
};

Measured measure(const Model& model, std::vector<int64_t> shape, int64_t samples, c10::ScalarType dtype) {
  shape.insert(shape.begin(), samples);
  const CountedMemory memory;
  const at::Tensor sum = model(torch::zeros(shape, dtype)).sum();
  const int64_t kept = memory.live_bytes();
  sum.backward();
  const int64_t left = memory.live_bytes();  // what kernels keep for their next call
  return {kept - left, memory.peak_bytes() - left};
}

}  // namespace

ActivationMemory measure_activations(const Model& model, const std::vector<int64_t>& sample_shape,
                                     c10::ScalarType dtype) {
  const WithoutGradients scope(*model.module());
  const Measured one = measure(model, sample_shape, 1, dtype);
  const Measured two = measure(model, sample_shape, 2, dtype);
  const int64_t sample = std::max<int64_t>(0, two.peak - one.peak);
  return {std::max<int64_t>(0, one.peak - sample), sample, std::max<int64_t>(0, two.kept - one.kept)};
}

}  // namespace lockstep::train
