#pragma once

#include <lockstep/json.h>
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <variant>

namespace lockstep::config {

// Values by names that the user chooses: --hyperparams lr=0.1 --hyperparams net=cnn.
using FreeValue = std::variant<bool, int64_t, double, std::string>;
using FreeValues = std::map<std::string, FreeValue>;

// One mechanism between the fields of a struct and JSON, whatever the field's type.

Json to_json(const FreeValue& value);
FreeValue free_value_of(const Json& value);
// "true", "3", "0.5" or any other text as what it looks like.
FreeValue parse_free_value(const std::string& text);

// Throws std::invalid_argument with what the value should have been.
void assign_text(std::string& field, const Json& value);
void assign_bool(bool& field, const Json& value);
void assign_integer(int64_t& field, const Json& value, int64_t least, int64_t most);
void assign_unsigned(uint64_t& field, const Json& value);
void assign_real(double& field, const Json& value);
void assign_free_values(FreeValues& field, const Json& value);

// A repeatable option NAME=VALUE.
CLI::Option* add_free_values(CLI::App& app, const std::string& names, FreeValues& field);

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename T>
struct ValueType {
  using Type = T;
};
template <typename T>
struct ValueType<std::optional<T>> {
  using Type = T;
};

template <typename T>
Json value_of(const T& field) {
  if constexpr (is_optional<T>) {
    return field ? Json(*field) : Json(nullptr);
  } else if constexpr (std::is_same_v<T, FreeValues>) {
    Json result = Json::object();
    for (const auto& [name, value] : field) result[name] = to_json(value);
    return result;
  } else {
    return field;
  }
}

// What is wrong with the text of a whole number of type T. Empty: nothing, and the text is
// as CLI11 reads it right: a zero in front would make it octal.
template <typename T>
std::string complaint_about(std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return "must be nearer to zero: '" + text + "'";
  if (error == std::errc() && read_to == end) {
    text = std::to_string(number);
    return {};
  }
  return std::string("must be a whole number") + (std::is_unsigned_v<T> ? " that is not negative" : "") +
         ": '" + text + "'";
}

// An option with one value, which is its default as well.
template <typename T>
CLI::Option* add_value(CLI::App& app, const std::string& names, T& field) {
  using Value = typename ValueType<T>::Type;
  CLI::Option* option = app.add_option(names, field)->capture_default_str();
  if constexpr (is_optional<T>) {
    if (field) option->default_str(value_of(field).dump());
  }
  // CLI11 cuts a number that is too large to the largest there is, and takes -1 for a large one.
  if constexpr (std::is_integral_v<Value>) option->transform(CLI::Validator(&complaint_about<Value>, ""));
  return option;
}

template <typename T>
void assign_value(T& field, const Json& value) {
  if constexpr (is_optional<T>) {
    typename T::value_type inner{};
    assign_value(inner, value);
    field = inner;
  } else if constexpr (std::is_same_v<T, std::string>) {
    assign_text(field, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    assign_bool(field, value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    assign_unsigned(field, value);
  } else if constexpr (std::is_integral_v<T>) {
    int64_t wide = 0;
    assign_integer(wide, value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    field = static_cast<T>(wide);
  } else if constexpr (std::is_same_v<T, FreeValues>) {
    assign_free_values(field, value);
  } else {
    assign_real(field, value);
  }
}

}  // namespace lockstep::config
