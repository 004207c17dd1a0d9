#pragma once

#include <lockstep/tracker.h>

#include <lockstep/json.h>
#include <string>

namespace lockstep::track {

// JSON has no NaN and no infinities: they become "NaN", "Infinity" and "-Infinity", as
// protocol buffers write them in JSON, and so as MLflow reads them.
Json json_value(double value);
Json json_value(const HyperparameterValue& value);

// One line. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(const Json& value);

}  // namespace lockstep::track
