#include "checkpoint/dtype.h"

#include <fmt/format.h>
#include <lockstep/error.h>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kComplexDoubleName = "C128";

// An empty name: that format has none.
struct DtypeNames {
  at::ScalarType dtype;
  std::string_view safetensors;
  std::string_view python;
  std::string_view storage;
};

constexpr DtypeNames kDtypeNames[] = {
    {at::kFloat, "F32", "torch.float32", "torch.FloatStorage"},
    {at::kDouble, "F64", "torch.float64", "torch.DoubleStorage"},
    {at::kHalf, "F16", "torch.float16", "torch.HalfStorage"},
    {at::kBFloat16, "BF16", "torch.bfloat16", "torch.BFloat16Storage"},
    {at::kLong, "I64", "torch.int64", "torch.LongStorage"},
    {at::kInt, "I32", "torch.int32", "torch.IntStorage"},
    {at::kShort, "I16", "torch.int16", "torch.ShortStorage"},
    {at::kChar, "I8", "torch.int8", "torch.CharStorage"},
    {at::kByte, "U8", "torch.uint8", "torch.ByteStorage"},
    {at::kBool, "BOOL", "torch.bool", "torch.BoolStorage"},
    {at::kComplexFloat, "C64", "torch.complex64", "torch.ComplexFloatStorage"},
    {at::kComplexDouble, "", "torch.complex128", "torch.ComplexDoubleStorage"},
    {at::kComplexHalf, "", "torch.complex32", ""},
    {at::kUInt16, "U16", "torch.uint16", ""},
    {at::kUInt32, "U32", "torch.uint32", ""},
    {at::kUInt64, "U64", "torch.uint64", ""},
    {at::kFloat8_e5m2, "F8_E5M2", "torch.float8_e5m2", ""},
    {at::kFloat8_e4m3fn, "F8_E4M3", "torch.float8_e4m3fn", ""},
    {at::kFloat8_e5m2fnuz, "", "torch.float8_e5m2fnuz", ""},
    {at::kFloat8_e4m3fnuz, "", "torch.float8_e4m3fnuz", ""},
    {at::kFloat8_e8m0fnu, "", "torch.float8_e8m0fnu", ""},
};

const DtypeNames* names_of(at::ScalarType dtype) {
  for (const DtypeNames& names : kDtypeNames) {
    if (names.dtype == dtype) return &names;
  }
  return nullptr;
}

std::optional<std::string_view> unless_empty(std::string_view name) {
  return name.empty() ? std::nullopt : std::optional(name);
}

}  // namespace

std::optional<std::string_view> safetensors_dtype_name(at::ScalarType dtype) {
  const DtypeNames* const names = names_of(dtype);
  return names == nullptr ? std::nullopt : unless_empty(names->safetensors);
}

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const DtypeNames& names : kDtypeNames) {
    if (!names.safetensors.empty() && names.safetensors == name) return names.dtype;
  }
  return std::nullopt;
}

std::optional<std::string_view> manifest_dtype_name(at::ScalarType dtype) {
  return dtype == at::kComplexDouble ? kComplexDoubleName : safetensors_dtype_name(dtype);
}

std::optional<at::ScalarType> manifest_dtype(std::string_view name) {
  return name == kComplexDoubleName ? at::kComplexDouble : safetensors_dtype(name);
}

std::string_view python_dtype_name(at::ScalarType dtype) {
  const DtypeNames* const names = names_of(dtype);
  if (names != nullptr) return names->python;
  throw ConfigError("interop", fmt::format("torch.save has no dtype {}", c10::toString(dtype)));
}

std::optional<std::string_view> python_storage_class(at::ScalarType dtype) {
  const DtypeNames* const names = names_of(dtype);
  return names == nullptr ? std::nullopt : unless_empty(names->storage);
}

std::optional<at::ScalarType> python_dtype(std::string_view name) {
  constexpr std::string_view kCpu = "torch.";
  constexpr std::string_view kCuda = "torch.cuda.";
  for (const DtypeNames& names : kDtypeNames) {
    if (name == names.python) return names.dtype;
    if (names.storage.empty()) continue;
    if (name == names.storage) return names.dtype;
    if (name.starts_with(kCuda) && name.substr(kCuda.size()) == names.storage.substr(kCpu.size())) {
      return names.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
