#include "checkpoint/dtype.h"

#include <utility>

namespace lockstep::checkpoint {
namespace {

// The names of safetensors' format; the rest of ATen's dtypes has none there.
constexpr std::pair<at::ScalarType, std::string_view> kNames[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kUInt16, "U16"},
    {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},
    {at::kBool, "BOOL"},
    {at::kComplexFloat, "C64"},
};

}  // namespace

std::optional<std::string_view> dtype_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
