#include "interop/match_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace lockstep::interop {
namespace {

constexpr std::array<std::string_view, 2> kWrapperPrefixes = {"module.", "_orig_mod."};
constexpr size_t kMaxLines = 20;

// Tensors with equal places are the same elements.
using Place = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>;

// Stand-ins on the meta device have no address: each has a storage of its own.
Place place_of(const at::Tensor& tensor) {
  const void* const where =
      tensor.is_meta() ? tensor.storage().unsafeGetStorageImpl() : tensor.const_data_ptr();
  return {where, tensor.sizes().vec(), tensor.strides().vec()};
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

std::unordered_map<std::string_view, const at::Tensor*> index(const NamedTensors& tensors, size_t prefix) {
  std::unordered_map<std::string_view, const at::Tensor*> result;
  for (const auto& [name, tensor] : tensors) result[std::string_view(name).substr(prefix)] = &tensor;
  return result;
}

}  // namespace

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  }
  return result;
}

std::string wrapper_prefix(const NamedTensors& tensors) {
  std::string prefix;
  const auto all_have = [&](const std::string& candidate) {
    return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
      return entry.first.starts_with(candidate) && entry.first.size() > candidate.size();
    });
  };
  for (bool longer = true; longer;) {
    longer = false;
    for (const std::string_view wrapper : kWrapperPrefixes) {
      if (const std::string candidate = prefix + std::string(wrapper); all_have(candidate)) {
        prefix = candidate;
        longer = true;
      }
    }
  }
  return prefix;
}

WeightMatch match_weights(const NamedTensors& model, const NamedTensors& file) {
  const size_t model_prefix = wrapper_prefix(model).size();
  const size_t file_prefix = wrapper_prefix(file).size();
  const auto in_model = index(model, model_prefix);
  const auto in_file = index(file, file_prefix);
  WeightMatch match;
  std::set<Place> filled;
  std::set<Place> used;
  for (const auto& [name, tensor] : model) {
    const auto found = in_file.find(std::string_view(name).substr(model_prefix));
    if (found == in_file.end()) continue;
    const at::Tensor& from = *found->second;
    (tensor.sizes() == from.sizes() ? match.pairs : match.other_shape).push_back({name, tensor, from});
    // What has no elements is nowhere.
    if (tensor.numel() > 0) filled.insert(place_of(tensor));
    if (from.numel() > 0) used.insert(place_of(from));
  }
  for (const auto& [name, tensor] : model) {
    if (in_file.count(std::string_view(name).substr(model_prefix)) == 0 &&
        filled.count(place_of(tensor)) == 0) {
      match.missing.push_back(name);
    }
  }
  for (const auto& [name, tensor] : file) {
    if (in_model.count(std::string_view(name).substr(file_prefix)) == 0 &&
        used.count(place_of(tensor)) == 0) {
      match.unexpected.push_back(name);
    }
  }
  return match;
}

std::vector<std::string> WeightMatch::other_dtype() const {
  std::vector<std::string> names;
  for (const Pair& pair : pairs) {
    if (pair.to.scalar_type() != pair.from.scalar_type()) names.push_back(pair.name);
  }
  return names;
}

std::string WeightMatch::differences() const {
  std::vector<std::string> lines;
  for (const std::string& name : missing) lines.push_back(fmt::format("missing in the file: {}", name));
  for (const std::string& name : unexpected) lines.push_back(fmt::format("not in the model: {}", name));
  const auto compare = [&](const Pair& pair) {
    lines.push_back(fmt::format("{}: {} in the model, {} in the file", pair.name, describe(pair.to),
                                describe(pair.from)));
  };
  for (const Pair& pair : other_shape) compare(pair);
  for (const Pair& pair : pairs) {
    if (pair.to.scalar_type() != pair.from.scalar_type()) compare(pair);
  }
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) text += fmt::format("\n  {}", lines[i]);
  if (lines.size() > kMaxLines) text += fmt::format("\n  and {} more", lines.size() - kMaxLines);
  return text;
}

}  // namespace lockstep::interop
