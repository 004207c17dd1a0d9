#include "shard/unit_map.h"

#include <torch/nn/module.h>

namespace lockstep::shard {

void UnitMap::visit(torch::nn::Module& module, size_t unit) {
  if (auto* own = dynamic_cast<Unit*>(&module)) {
    const auto [found, is_new] = index_.try_emplace(own, units_.size() + 1);
    if (is_new) {
      units_.push_back(own);
      parents_.push_back(unit);
    }
    unit = found->second;
  }
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    const auto [found, is_new] = owner_.try_emplace(parameter.unsafeGetTensorImpl(), unit);
    if (!is_new && found->second != unit) found->second = 0;
  }
  for (const auto& child : module.children()) visit(*child, unit);
}

}  // namespace lockstep::shard
