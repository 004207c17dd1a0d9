#include "train/weighted_result.h"

#include <ATen/ATen.h>

namespace lockstep::train {

void add_weighted(LossResult& total, const LossResult& part, double weight) {
  const auto add = [weight](const at::Tensor& sum, const at::Tensor& value) {
    const at::Tensor scaled = weight == 1 ? value.detach() : value.detach() * weight;
    return sum.defined() ? sum + scaled : scaled;
  };
  total.loss = add(total.loss, part.loss);
  for (const auto& [name, value] : part.metrics) total.metrics[name] = add(total.metrics[name], value);
}

}  // namespace lockstep::train
