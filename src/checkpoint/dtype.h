#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

// "F32" for kFloat; nullopt for a dtype that safetensors does not know.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);

// The other way round.
std::optional<at::ScalarType> dtype_of(std::string_view name);

// The bytes of a tensor of this shape; nullopt where they do not fit into int64_t, with
// dimensions of 0 left out of the product too, or where a size is negative.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t bytes_per_element);

// Dimensions that a tensor of ours may have.
inline constexpr size_t kMaxDimensions = 64;

}  // namespace lockstep::checkpoint
