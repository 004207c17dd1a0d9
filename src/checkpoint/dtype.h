#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace lockstep::checkpoint {

// The names of dtypes in files: of safetensors ("F32"), of our manifests and of Python's torch.save
// ("torch.float32"). Messages use c10::toString ("Float").

// Of our manifests: safetensors' names, and C128 for complex128, which shards hold as pairs of F64.
// nullopt: no such dtype.
std::optional<std::string_view> manifest_dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> manifest_dtype(std::string_view name);
// The dtype of the same bytes in the header of a shard.
inline at::ScalarType shard_dtype(at::ScalarType dtype) {
  return dtype == at::kComplexDouble ? at::kDouble : dtype;
}

// nullopt: safetensors has no such dtype.
std::optional<std::string_view> safetensors_dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

// ConfigError: torch.save has no such dtype.
std::string_view python_dtype_name(at::ScalarType dtype);
// The class of a storage with these elements: "torch.FloatStorage". nullopt: torch.save writes them
// as untyped bytes.
std::optional<std::string_view> python_storage_class(at::ScalarType dtype);
// The dtype of either name; "torch.cuda.FloatStorage" too. nullopt: neither.
std::optional<at::ScalarType> python_dtype(std::string_view name);

}  // namespace lockstep::checkpoint
