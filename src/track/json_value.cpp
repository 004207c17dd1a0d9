#include "track/json_value.h"

#include <cmath>
#include <type_traits>

namespace lockstep::track {

Json json_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json json_value(const HyperparameterValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, double>) return json_value(held);
        return held;
      },
      value);
}

std::string json_text(const Json& value) {
  return value.dump(Json::Print{.order = Json::Order::kAsAdded, .replace_invalid = true});
}

}  // namespace lockstep::track
