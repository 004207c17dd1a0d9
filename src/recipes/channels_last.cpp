#include "recipes/channels_last.h"

#include <torch/torch.h>

namespace lockstep::recipes {

void use_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace lockstep::recipes
