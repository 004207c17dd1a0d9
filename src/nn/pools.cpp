#include <ATen/ATen.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "nn/kernels.h"

namespace lockstep::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class FusedMaxPool : public torch::autograd::Function<FusedMaxPool> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Kernels& kernels) {
    const Kernels::PoolResult result = kernels.max_pool_2x2(input);
    context->set_materialize_grads(false);
    context->save_for_backward({result.place});
    context->saved_data["height"] = input.size(2);
    context->saved_data["width"] = input.size(3);
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("max_pool_2x2");
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    return {loaded_kernels()->max_pool_2x2_backward(gradient, context->get_saved_variables()[0],
                                                    context->saved_data["height"].toInt(),
                                                    context->saved_data["width"].toInt()),
            at::Tensor()};
  }
};

class FusedCornerMean : public torch::autograd::Function<FusedCornerMean> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, int64_t size,
                            const Kernels& kernels) {
    context->set_materialize_grads(false);
    context->saved_data["size"] = size;
    context->saved_data["height"] = input.size(2);
    context->saved_data["width"] = input.size(3);
    return kernels.corner_mean(input, size);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("avg_pool");
    variable_list result(3);
    if (!gradients[0].defined()) return result;
    result[0] = loaded_kernels()->corner_mean_backward(
        gradients[0].contiguous(at::MemoryFormat::ChannelsLast), context->saved_data["size"].toInt(),
        context->saved_data["height"].toInt(), context->saved_data["width"].toInt());
    return result;
  }
};

}  // namespace

torch::Tensor max_pool_2x2(const torch::Tensor& input) {
  const Kernels* kernels = kernels_for(input);
  if (kernels == nullptr || input.size(2) < 2 || input.size(3) < 2) return at::max_pool2d(input, 2);
  return FusedMaxPool::apply(input.contiguous(at::MemoryFormat::ChannelsLast), *kernels);
}

torch::Tensor avg_pool(const torch::Tensor& input, int64_t size) {
  const Kernels* kernels = kernels_for(input);
  const auto is_one = [size](int64_t side) { return side >= size && side < 2 * size; };
  if (kernels == nullptr || !is_one(input.size(2)) || !is_one(input.size(3)))
    return at::avg_pool2d(input, size);
  return FusedCornerMean::apply(input.contiguous(at::MemoryFormat::ChannelsLast), size, *kernels);
}

}  // namespace lockstep::nn
