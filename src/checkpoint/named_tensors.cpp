#include <lockstep/named_tensors.h>
#include <torch/torch.h>

#include <unordered_set>

namespace lockstep {
namespace {

NamedTensors each_once(const torch::OrderedDict<std::string, at::Tensor>& all) {
  NamedTensors result;
  std::unordered_set<const void*> seen;
  for (const auto& item : all) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    result.emplace_back(item.key(), item.value());
  }
  return result;
}

}  // namespace

NamedTensors named_parameters(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

NamedTensors named_buffers(const torch::nn::Module& module) { return each_once(module.named_buffers()); }

}  // namespace lockstep
