#include "optim/state_fields.h"

#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>

namespace lockstep::optim {
namespace {

// A divided optimizer keeps float32 beside parameters of 16 bit, a whole one 16 bit: each goes on
// from the other's state.
bool converts(c10::ScalarType from, c10::ScalarType to) {
  const auto is_16bit = [](c10::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; };
  return from == to || (from == at::kFloat && is_16bit(to)) || (is_16bit(from) && to == at::kFloat);
}

}  // namespace

void FieldWriter::operator()(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  values_["tensors"].push_back(name);
  tensors_.emplace_back(fmt::format("{}/{}", prefix_, name), tensor);
}

void FieldWriter::operator()(const char* name, const std::deque<at::Tensor>& list) {
  values_[name] = list.size();
  for (size_t i = 0; i < list.size(); ++i) {
    tensors_.emplace_back(fmt::format("{}/{}/{}", prefix_, name, i), list[i]);
  }
}

at::Tensor FieldReader::take(const std::string& name) {
  const auto found = pool_.find(fmt::format("{}/{}", prefix_, name));
  if (found == pool_.end()) {
    throw ConfigError("optim",
                      fmt::format("a tensor of the saved optimizer state is missing: {}/{}", prefix_, name));
  }
  const at::Tensor tensor = found->second;
  const bool scalar = allow_scalars_ && tensor.dim() == 0;
  const bool fits = tensor.sizes() == like_.sizes() && converts(tensor.scalar_type(), like_.scalar_type());
  if (!scalar && !fits) {
    throw ConfigError(
        "optim",
        fmt::format(
            "the saved optimizer state does not fit the model: {} of {} is {} [{}] there and {} [{}] here",
            name, prefix_.empty() ? "all parameters" : prefix_, c10::toString(tensor.scalar_type()),
            fmt::join(tensor.sizes(), ", "), c10::toString(like_.scalar_type()),
            fmt::join(like_.sizes(), ", ")));
  }
  pool_.erase(found);
  if (scalar) return tensor.detach().to(like_.device(), tensor.scalar_type(), false, /*copy=*/true);
  // With the parameter's strides: fused kernels take no mixture of layouts.
  const at::NoGradGuard no_grad;
  return at::empty_like(like_).copy_(tensor).detach();
}

void FieldReader::operator()(const char* name, at::Tensor& tensor) {
  const auto& saved = values_.at("tensors");
  if (std::find(saved.begin(), saved.end(), name) != saved.end()) tensor = take(name);
}

void FieldReader::operator()(const char* name, std::deque<at::Tensor>& list) {
  const auto size = values_.at(name).get<size_t>();
  list.clear();
  for (size_t i = 0; i < size; ++i) list.push_back(take(fmt::format("{}/{}", name, i)));
}

}  // namespace lockstep::optim
