#include "train/dtype.h"

#include <fmt/format.h>
#include <lockstep/error.h>

namespace lockstep::train {

c10::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return c10::ScalarType::Float;
  if (name == "float64") return c10::ScalarType::Double;
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  if (name == "float16") return c10::ScalarType::Half;
  throw ConfigError("config",
                    fmt::format("dtype must be one of float32, float64, bfloat16, float16: '{}'", name));
}

}  // namespace lockstep::train
