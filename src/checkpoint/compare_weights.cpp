#include "checkpoint/compare_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace lockstep::checkpoint {
namespace {

constexpr std::array<std::string_view, 2> kWrapperPrefixes = {"module.", "_orig_mod."};
constexpr size_t kMaxLines = 20;

// Tensors with equal places have the same elements.
using Place = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>;

// Tensors on the meta device have no address, but each has its own storage.
Place place_of(const at::Tensor& tensor) {
  const void* const where =
      tensor.is_meta() ? tensor.storage().unsafeGetStorageImpl() : tensor.const_data_ptr();
  return {where, tensor.sizes().vec(), tensor.strides().vec()};
}

std::string type_and_shape(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

std::unordered_map<std::string_view, const at::Tensor*> index(const NamedTensors& tensors, size_t prefix) {
  std::unordered_map<std::string_view, const at::Tensor*> result;
  for (const auto& [name, tensor] : tensors) result[std::string_view(name).substr(prefix)] = &tensor;
  return result;
}

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

// A dtype that holds the values of this one and that every operation supports.
at::ScalarType wide(at::ScalarType type) {
  if (c10::isComplexType(type)) return at::kComplexDouble;
  return c10::isFloatingType(type) ? at::kDouble : at::kLong;
}

void compare_part(const at::Tensor& x, const at::Tensor& y, const Tolerance& tolerance,
                  TensorDifference& result) {
  const at::Tensor unequal = x.ne(y).logical_and_(x.isnan().logical_and_(y.isnan()).logical_not_());
  const int64_t elements = unequal.sum().item<int64_t>();
  if (elements == 0) return;
  const at::Tensor a =
      x.masked_select(unequal).to(c10::isComplexType(x.scalar_type()) ? at::kComplexDouble : at::kDouble);
  const at::Tensor b = y.masked_select(unequal).to(a.scalar_type());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor absolute = (a - b).abs().nan_to_num_(kInfinity, kInfinity, kInfinity);
  const at::Tensor size = b.abs();
  const at::Tensor relative = (absolute / size).nan_to_num_(kInfinity, kInfinity, kInfinity);
  const at::Tensor within =
      absolute.le(size * tolerance.relative + tolerance.absolute).logical_and_(absolute.isfinite());
  result.elements += elements;
  result.out_of_range += elements - within.sum().item<int64_t>();
  result.max_absolute = std::max(result.max_absolute, absolute.max().item<double>());
  result.max_relative = std::max(result.max_relative, relative.max().item<double>());
}

std::set<std::string> non_persistent_names(const torch::nn::Module& module) {
  std::set<std::string> names;
  const auto add = [&](const torch::nn::Module& part, const std::string& prefix) {
    const auto* const known = dynamic_cast<const HasNonPersistentBuffers*>(&part);
    if (known == nullptr) return;
    for (const std::string& name : known->non_persistent_buffers()) names.insert(prefix + name);
  };
  add(module, "");
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(*item.value(), item.key() + ".");
  }
  return names;
}

}  // namespace

NamedTensors weights_of(const torch::nn::Module& module) {
  const std::set<std::string> left_out = non_persistent_names(module);
  NamedTensors result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && left_out.count(item.key()) == 0) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

NamedTensors non_persistent_buffers(const torch::nn::Module& module) {
  const std::set<std::string> names = non_persistent_names(module);
  NamedTensors result;
  if (names.empty()) return result;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && names.count(item.key()) > 0) result.emplace_back(item.key(), item.value());
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
    // A tensor without elements has no place.
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
    lines.push_back(fmt::format("{}: {} in the model, {} in the file", pair.name, type_and_shape(pair.to),
                                type_and_shape(pair.from)));
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

TensorDifference compare_tensors(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance) {
  const torch::NoGradGuard guard;
  const at::ScalarType type = c10::promoteTypes(wide(a.scalar_type()), wide(b.scalar_type()));
  const at::Tensor left = a.reshape({-1});
  const at::Tensor right = b.reshape({-1});
  TensorDifference result;
  for (int64_t first = 0; first < left.numel(); first += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, left.numel() - first);
    compare_part(left.narrow(0, first, count).to(type), right.narrow(0, first, count).to(type), tolerance,
                 result);
  }
  return result;
}

}  // namespace lockstep::checkpoint
