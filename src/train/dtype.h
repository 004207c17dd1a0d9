#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace lockstep::train {

// float32, float64, bfloat16 or float16. ConfigError for anything else.
c10::ScalarType parse_dtype(const std::string& name);

}  // namespace lockstep::train
