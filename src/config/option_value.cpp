#include "config/option_value.h"

#include <fmt/format.h>

#include <charconv>
#include <concepts>
#include <limits>
#include <stdexcept>

namespace lockstep::config {
namespace {

[[noreturn]] void expected(const char* what) { throw std::invalid_argument(what); }

template <typename Number>
std::optional<Number> whole_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

FreeValue free_value_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  expected("true, false, a number or a text");
}

FreeValue parse_free_value(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (const auto integer = whole_number<int64_t>(text)) return *integer;
  if (const auto real = whole_number<double>(text)) return *real;
  return text;
}

namespace {

void assign(std::string& field, const Json& value) {
  if (!value.is_string()) expected("a text");
  field = value.get<std::string>();
}

void assign(bool& field, const Json& value) {
  if (!value.is_boolean()) expected("true or false");
  field = value.get<bool>();
}

template <std::signed_integral T>
void assign(T& field, const Json& value) {
  constexpr int64_t least = std::numeric_limits<T>::min();
  constexpr int64_t most = std::numeric_limits<T>::max();
  if (!value.is_number_integer()) expected("a whole number");
  const auto number = value.get<int64_t>();
  if (number < least || number > most) {
    throw std::invalid_argument(fmt::format("a whole number from {} to {}", least, most));
  }
  field = static_cast<T>(number);
}

void assign(uint64_t& field, const Json& value) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
    expected("a whole number that is not negative");
  }
  field = value.get<uint64_t>();
}

void assign(double& field, const Json& value) {
  if (!value.is_number()) expected("a number");
  field = value.get<double>();
}

void assign(FreeValues& field, const Json& value) {
  if (!value.is_object()) expected("a table of values");
  FreeValues values;
  for (const auto& [name, inner] : value.items()) values[name] = free_value_of(inner);
  field = std::move(values);
}

template <typename T>
void assign(std::optional<T>& field, const Json& value) {
  T inner{};
  assign(inner, value);
  field = inner;
}

template <typename T>
Json json_of(const T& field) {
  return field;
}
Json json_of(const FreeValues& field) {
  Json result = Json::object();
  for (const auto& [name, value] : field) {
    result[name] = std::visit([](const auto& inner) { return Json(inner); }, value);
  }
  return result;
}

}  // namespace

Json value_of(const Field& field) {
  return std::visit([](const auto* held) { return json_of(*held); }, field);
}

void assign_value(const Field& field, const Json& value) {
  std::visit([&](auto* held) { assign(*held, value); }, field);
}

}  // namespace lockstep::config
