#include "interop/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

constexpr std::array<std::string_view, 4> kNestedKeys = {"state_dict", "model_state_dict", "model", "module"};
constexpr size_t kMaxListedKeys = 10;

ValueRef find(const Dict& dict, std::string_view key) {
  ValueRef found = nullptr;
  for (const auto& [name, value] : dict.items) {
    const auto* text = name->as<std::string>();
    if (text != nullptr && *text == key) found = value;
  }
  return found;
}

bool has_tensors(ValueRef value) {
  const Dict* dict = value == nullptr ? nullptr : value->as<Dict>();
  return dict != nullptr && std::any_of(dict->items.begin(), dict->items.end(), [](const auto& item) {
           return item.second->template as<TensorReference>() != nullptr;
         });
}

// The one place that holds weights, or null.
ValueRef locate(ValueRef root) {
  if (const Dict* dict = root->as<Dict>()) {
    for (const std::string_view key : kNestedKeys) {
      if (ValueRef nested = find(*dict, key); has_tensors(nested)) return nested;
    }
    return has_tensors(root) ? root : nullptr;
  }
  if (const Tuple* tuple = root->as<Tuple>()) {  // (iteration, state_dict)
    const auto found = std::find_if(tuple->items.begin(), tuple->items.end(), has_tensors);
    return found == tuple->items.end() ? nullptr : *found;
  }
  return nullptr;
}

std::string describe(ValueRef root) {
  if (root->as<TensorReference>() != nullptr) return "a single tensor without a name";
  const Dict* dict = root->as<Dict>();
  if (dict == nullptr) return "no dict";
  std::string keys;
  for (size_t i = 0; i < std::min(dict->items.size(), kMaxListedKeys); ++i) {
    const auto* text = dict->items[i].first->as<std::string>();
    keys += fmt::format("{}'{}'", i == 0 ? "" : ", ", text == nullptr ? "(no text)" : text->substr(0, 80));
  }
  return fmt::format("a dict with {} keys: {}", dict->items.size(), keys);
}

}  // namespace

TensorReferences find_state_dict(ValueRef root) {
  const ValueRef place = locate(root);
  if (place == nullptr) {
    // An empty state dict is one: a model without parameters.
    if (const Dict* dict = root->as<Dict>(); dict != nullptr && dict->items.empty()) return {};
    throw PickleError(fmt::format(
        "it holds no state dict, but {}. Save one: torch.save(model.state_dict(), \"weights.pt\")",
        describe(root)));
  }
  TensorReferences result;
  std::unordered_map<std::string_view, size_t> places;
  for (const auto& [key, value] : place->as<Dict>()->items) {
    const auto* tensor = value->as<TensorReference>();
    if (tensor == nullptr) continue;
    const auto* name = key->as<std::string>();
    if (name == nullptr) throw PickleError("a tensor of its state dict has a key that is no text");
    const auto [position, is_new] = places.emplace(*name, result.size());
    if (is_new) {
      result.emplace_back(*name, tensor);
    } else {
      result[position->second].second = tensor;
    }
  }
  return result;
}

}  // namespace lockstep::interop
