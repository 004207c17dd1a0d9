#include "engine/model_profile.h"

#include <lockstep/named_tensors.h>
#include <torch/torch.h>

#include <algorithm>
#include <string_view>

namespace lockstep::engine {
namespace {

// "Conv2d" of "torch::nn::Conv2dImpl", "Sharded<Block>" of "lockstep::ShardedImpl<net::BlockImpl, ...>".
std::string short_type(std::string_view type) {
  const size_t arguments = type.find('<');
  std::string_view name = type.substr(0, arguments);
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) name.remove_prefix(colon + 1);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.substr(name.size() - kImpl.size()) == kImpl) {
    name.remove_suffix(kImpl.size());
  }
  if (arguments == std::string_view::npos) return std::string(name);
  const std::string_view rest = type.substr(arguments + 1);
  return std::string(name) + "<" + short_type(rest.substr(0, rest.find_first_of("<>,"))) + ">";
}

// Not where stage 3 has taken a parameter apart.
bool is_there(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
         tensor.unsafeGetTensorImpl()->storage_initialized();
}

bool overlaps(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!is_there(parameter)) return false;
  const auto* begin = static_cast<const char*>(parameter.const_data_ptr());
  const auto* at = static_cast<const char*>(tensor.const_data_ptr());
  return at >= begin && at < begin + parameter.nbytes();
}

}  // namespace

ModelProfile::ModelProfile(const torch::nn::Module& model) { add(model, "", 0, 0); }

size_t ModelProfile::add(const torch::nn::Module& module, std::string name, int depth, size_t parent) {
  const size_t index = parts_.size();
  parts_.push_back({name, short_type(module.name()), depth});
  parents_.push_back(parent);
  for (const auto& [unused, parameter] : named_parameters(module)) {  // a tied one once
    parts_[index].parameters += parameter.numel();
  }
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    owned_.push_back({parameter, index});
  }
  for (const auto& child : module.named_children()) {
    add(*child.value(), name.empty() ? child.key() : name + "." + child.key(), depth + 1, index);
  }
  return index;
}

// A view of a parameter, as a transposed weight, lies where the parameter is.
size_t ModelProfile::owner_of(c10::ArrayRef<const c10::IValue> inputs) const {
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !is_there(input.toTensor())) continue;
    const at::Tensor& tensor = input.toTensor();
    const auto found = std::find_if(owned_.begin(), owned_.end(),
                                    [&](const Owned& owned) { return overlaps(tensor, owned.parameter); });
    if (found != owned_.end()) return found->part;
  }
  return 0;
}

void ModelProfile::began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs) {
  running_ = owner_of(inputs);
  running_cost_ = cost;
}

void ModelProfile::ended(std::chrono::nanoseconds time) {
  for (size_t part = running_;; part = parents_[part]) {
    parts_[part].cost += running_cost_;
    parts_[part].time += time;
    if (part == 0) return;
  }
}

void ModelProfile::clear() {
  for (Part& part : parts_) {
    part.cost = {};
    part.time = {};
  }
}

}  // namespace lockstep::engine
