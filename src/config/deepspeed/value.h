#pragma once

#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/hjson.h"

namespace lockstep::deepspeed {

// The valid values of a number.
struct Range {
  std::optional<double> least = {};
  std::optional<double> most = {};
  bool above = false;  // `least` itself is not valid
  bool below = false;  // `most` itself is not valid
};

inline constexpr Range kNotNegative = {.least = 0};
inline constexpr Range kAtLeastOne = {.least = 1};

// Conversion between the values of a document and the fields of DeepSpeedConfig. The read functions throw
// std::invalid_argument with a description of valid values: "a whole number from 0 to 3".

bool read_bool(const config::HjsonNode& node);
int64_t read_integer(const config::HjsonNode& node, const Range& range);
double read_real(const config::HjsonNode& node, const Range& range);
std::string read_text(const config::HjsonNode& node);
std::vector<std::string> read_texts(const config::HjsonNode& node);
std::array<double, 2> read_pair(const config::HjsonNode& node, const Range& range);

// The names of the values of an enumeration, in any case. The first name of a value is the one that is
// printed.
template <typename Enum>
using Names = std::vector<std::pair<std::string_view, Enum>>;
const Names<DeepSpeedConfig::Dtype>& names_of(DeepSpeedConfig::Dtype value);
const Names<DeepSpeedConfig::GradientOp>& names_of(DeepSpeedConfig::GradientOp value);
const Names<DeepSpeedConfig::OffloadDevice>& names_of(DeepSpeedConfig::OffloadDevice value);
const Names<DeepSpeedConfig::LogLevel>& names_of(DeepSpeedConfig::LogLevel value);
const Names<DeepSpeedConfig::Optimizer::LineSearch>& names_of(DeepSpeedConfig::Optimizer::LineSearch value);
const Names<DeepSpeedConfig::Optimizer::Type>& names_of(DeepSpeedConfig::Optimizer::Type value);
const Names<DeepSpeedConfig::Scheduler::Type>& names_of(DeepSpeedConfig::Scheduler::Type value);
const Names<DeepSpeedConfig::Scheduler::Warmup>& names_of(DeepSpeedConfig::Scheduler::Warmup value);
const Names<DeepSpeedConfig::Checkpoint::TagValidation>& names_of(
    DeepSpeedConfig::Checkpoint::TagValidation value);

bool is_name(const config::HjsonNode& node, std::string_view name);
[[noreturn]] void fail_name(const std::vector<std::string_view>& names);

// The first name of each value.
template <typename Enum>
std::vector<std::string_view> first_names(const Names<Enum>& all) {
  std::vector<std::string_view> names;
  std::vector<Enum> seen;
  for (const auto& [name, value] : all) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
    names.push_back(name);
  }
  return names;
}

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename T>
T read_value(const config::HjsonNode& node, const Range& range) {
  if constexpr (is_optional<T>) {
    if (node.kind == config::HjsonNode::Kind::kNull) return std::nullopt;
    return read_value<typename T::value_type>(node, range);
  } else if constexpr (std::is_same_v<T, bool>) {
    return read_bool(node);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return read_integer(node, range);
  } else if constexpr (std::is_same_v<T, double>) {
    return read_real(node, range);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_text(node);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return read_texts(node);
  } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    return read_pair(node, range);
  } else {
    static_assert(std::is_enum_v<T>);
    for (const auto& [name, value] : names_of(T{})) {
      if (is_name(node, name)) return value;
    }
    fail_name(first_names(names_of(T{})));
  }
}

template <typename T>
Json write_value(const T& value) {
  if constexpr (is_optional<T>) {
    return value ? write_value(*value) : Json(nullptr);
  } else if constexpr (std::is_enum_v<T>) {
    for (const auto& [name, named] : names_of(value)) {
      if (named == value) return std::string(name);
    }
    return nullptr;
  } else {
    return value;
  }
}

// A value for a message: 5, 'text', an object.
std::string shown(const config::HjsonNode& node);
// Whether the value equals the one in the JSON, which is a number, a word, a string, {} or [].
bool equals_json(const config::HjsonNode& node, std::string_view json);

// The operation of Communicator for a name in comms_logger.prof_ops: a name of PyTorch, which DeepSpeed
// uses, or of Communicator. nullopt: no such operation.
std::optional<std::string_view> operation_of(std::string_view name);
std::vector<std::string> operation_names();

}  // namespace lockstep::deepspeed
