#include "checkpoint/pickle_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/safetensors.h"
#include "config/text_cursor.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMaxPlainDepth = 16;
constexpr size_t kMaxPlainValues = 100'000;
constexpr size_t kMaxPlainText = 65'536;
constexpr size_t kMaxNameBytes = 4096;

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = config::utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

template <typename T>
const T& as(ValueRef value, std::string_view what, std::string_view kind) {
  const T* result = value->as<T>();
  if (result == nullptr) throw PickleError(fmt::format("its '{}' is no {}", what, kind));
  return *result;
}

bool add_plain(ValueRef value, int depth, size_t& budget, Json& to);

bool add_plain_items(const std::vector<ValueRef>& items, int depth, size_t& budget, Json& to) {
  to = Json::array();
  for (ValueRef item : items) {
    to.push_back(nullptr);
    if (!add_plain(item, depth, budget, to.back())) return false;
  }
  return true;
}

bool add_plain_dict(const Dict& dict, int depth, size_t& budget, Json& to) {
  to = Json::object();
  for (const auto& [key, value] : dict.items) {
    const auto* name = key->as<std::string>();
    const auto* number = key->as<int64_t>();
    if (name == nullptr && number == nullptr) return false;
    if (name != nullptr && !is_utf8(*name)) return false;
    if (!add_plain(value, depth, budget, to[name != nullptr ? *name : std::to_string(*number)])) return false;
  }
  return true;
}

// False: a value that JSON cannot hold, or too many.
bool add_plain(ValueRef value, int depth, size_t& budget, Json& to) {
  if (depth > kMaxPlainDepth || budget == 0) return false;
  --budget;
  if (value->as<std::monostate>() != nullptr) return true;
  if (const auto* flag = value->as<bool>()) return to = *flag, true;
  if (const auto* number = value->as<int64_t>()) return to = *number, true;
  if (const auto* number = value->as<double>()) return to = *number, std::isfinite(*number);
  if (const auto* text = value->as<std::string>())
    return to = *text, text->size() < kMaxPlainText && is_utf8(*text);
  if (const auto* list = value->as<List>()) return add_plain_items(list->items, depth + 1, budget, to);
  if (const auto* tuple = value->as<Tuple>()) return add_plain_items(tuple->items, depth + 1, budget, to);
  if (const auto* dict = value->as<Dict>()) return add_plain_dict(*dict, depth + 1, budget, to);
  return false;
}

}  // namespace

ValueRef find_member(const Dict& dict, std::string_view key) {
  ValueRef found = nullptr;
  for (const auto& [name, value] : dict.items) {
    const auto* text = name->as<std::string>();
    if (text != nullptr && *text == key) found = value;
  }
  return found == nullptr || found->as<std::monostate>() != nullptr ? nullptr : found;
}

ValueRef member(const Dict& dict, std::string_view key) {
  ValueRef found = find_member(dict, key);
  if (found == nullptr) throw PickleError(fmt::format("it has no '{}'", key));
  return found;
}

const Dict& dict_of(ValueRef value, std::string_view what) { return as<Dict>(value, what, "dict"); }

const std::vector<ValueRef>& items_of(ValueRef value, std::string_view what) {
  if (const auto* tuple = value->as<Tuple>()) return tuple->items;
  return as<List>(value, what, "list").items;
}

const std::string& text_of(ValueRef value, std::string_view what) {
  return as<std::string>(value, what, "text");
}

const std::string& name_of(ValueRef value, std::string_view what) {
  const std::string& text = text_of(value, what);
  check_name(text, what);
  return text;
}

void check_name(const std::string& name, std::string_view what) {
  if (name.empty() || name.size() > kMaxNameBytes || !is_utf8(name)) {
    throw PickleError(fmt::format("a name in its '{}' is empty, too long or no UTF-8", what));
  }
}

const TensorReference& tensor_of(ValueRef value, std::string_view what) {
  return as<TensorReference>(value, what, "tensor");
}

int64_t integer_of(ValueRef value, std::string_view what) { return as<int64_t>(value, what, "integer"); }

std::vector<int64_t> shape_of(ValueRef value, std::string_view what) {
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (ValueRef item : items_of(value, what)) {
    shape.push_back(integer_of(item, what));
    if (shape.back() < 0 || shape.size() > base::kMaxTensorDimensions ||
        __builtin_mul_overflow(elements, std::max<int64_t>(shape.back(), 1), &elements)) {
      throw PickleError(fmt::format("its '{}' is no shape", what));
    }
  }
  return shape;
}

std::optional<double> number_in(ValueRef value) {
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = value->as<bool>()) return *flag ? 1 : 0;
  if (const auto* number = value->as<int64_t>()) return static_cast<double>(*number);
  if (const auto* number = value->as<double>()) return *number;
  return std::nullopt;
}

TensorReferences tensors_of(const Dict& dict, std::string_view what) {
  TensorReferences result;
  std::unordered_map<std::string_view, size_t> places;
  for (const auto& [key, value] : dict.items) {
    const auto* tensor = value->as<TensorReference>();
    if (tensor == nullptr) continue;
    const std::string& name = text_of(key, what);
    const auto [place, is_new] = places.emplace(name, result.size());
    if (is_new) {
      result.emplace_back(name, tensor);
    } else {
      result[place->second].second = tensor;
    }
  }
  return result;
}

std::optional<Json> plain_value(ValueRef value) {
  Json result;
  size_t budget = kMaxPlainValues;
  if (!add_plain(value, 0, budget, result)) return std::nullopt;
  return result;
}

}  // namespace lockstep::checkpoint
