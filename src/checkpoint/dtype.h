#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/safetensors.h"

namespace lockstep::checkpoint {

// "F32" for kFloat; nullopt for a dtype that safetensors does not know.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);

// The other way round.
std::optional<at::ScalarType> dtype_of(std::string_view name);

using base::shape_bytes;

// Dimensions that a tensor of ours may have.
inline constexpr size_t kMaxDimensions = base::kMaxTensorDimensions;

}  // namespace lockstep::checkpoint
