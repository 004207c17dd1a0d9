#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interop/deepspeed/model_states.h"

namespace lockstep::interop {

// Where nothing is divided DeepSpeed numbers the parameters of the optimizer and does not
// name them. They are in groups, each in the order of the model; the model may have
// parameters that the optimizer does not have.

// The shape of a numbered parameter; nullopt: not known, for it has no state yet.
using NumberedShapes = std::vector<std::optional<std::vector<int64_t>>>;

// For each number the name, by shape and order. nullopt: there is no way to name them, or
// more than one.
std::optional<std::vector<std::string>> name_numbered(const std::vector<ShapedName>& parameters,
                                                      const std::vector<std::vector<size_t>>& groups,
                                                      const NumberedShapes& shapes);

}  // namespace lockstep::interop
