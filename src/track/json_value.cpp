#include "track/json_value.h"

#include <cmath>
#include <type_traits>

namespace lockstep::track {

nlohmann::ordered_json json_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

nlohmann::ordered_json json_value(const HyperparameterValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, double>) return json_value(held);
        return held;
      },
      value);
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lockstep::track
