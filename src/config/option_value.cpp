#include "config/option_value.h"

#include <fmt/format.h>

#include <charconv>
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

Json to_json(const FreeValue& value) {
  return std::visit([](const auto& inner) { return Json(inner); }, value);
}

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

void assign_text(std::string& field, const Json& value) {
  if (!value.is_string()) expected("a text");
  field = value.get<std::string>();
}

void assign_bool(bool& field, const Json& value) {
  if (!value.is_boolean()) expected("true or false");
  field = value.get<bool>();
}

void assign_integer(int64_t& field, const Json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) expected("a whole number");
  const auto number = value.get<int64_t>();
  if (number < least || number > most) {
    throw std::invalid_argument(fmt::format("a whole number from {} to {}", least, most));
  }
  field = number;
}

void assign_unsigned(uint64_t& field, const Json& value) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
    expected("a whole number that is not negative");
  }
  field = value.get<uint64_t>();
}

void assign_real(double& field, const Json& value) {
  if (!value.is_number()) expected("a number");
  field = value.get<double>();
}

void assign_free_values(FreeValues& field, const Json& value) {
  if (!value.is_object()) expected("a table of values");
  FreeValues values;
  for (const auto& [name, inner] : value.items()) values[name] = free_value_of(inner);
  field = std::move(values);
}

CLI::Option* add_free_values(CLI::App& app, const std::string& names, FreeValues& field) {
  const auto read = [&field](const CLI::results_t& results) {
    for (const std::string& item : results) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw CLI::ValidationError(fmt::format("'{}' is not NAME=VALUE", item));
      }
      field[item.substr(0, equals)] = parse_free_value(item.substr(equals + 1));
    }
    return true;
  };
  return app.add_option(names, read)->type_name("NAME=VALUE")->allow_extra_args(false);
}

}  // namespace lockstep::config
