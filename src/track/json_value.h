#pragma once

#include <lockstep/json.h>
#include <lockstep/track.h>

#include <cmath>
#include <string>
#include <type_traits>

namespace lockstep::track {

// JSON has no NaN and no infinities: they become "NaN", "Infinity" and "-Infinity", the spelling
// of protocol buffers, which MLflow reads.
inline Json json_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

inline Json json_value(const HyperparameterValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, double>) return json_value(held);
        return held;
      },
      value);
}

// JSON on one line. Bytes that are not UTF-8 become U+FFFD.
inline std::string json_text(const Json& value) {
  return value.dump(Json::Print{.order = Json::Order::kAsAdded, .replace_invalid = true});
}

}  // namespace lockstep::track
