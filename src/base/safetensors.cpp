#include "base/safetensors.h"

#include <fmt/format.h>
#include <lockstep/json.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/json.h"

namespace lockstep::base {
namespace {

constexpr std::pair<std::string_view, int64_t> kDtypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I64", 8},  {"I32", 4},
    {"I16", 2}, {"I8", 1},  {"U8", 1},  {"U16", 2},  {"U32", 4},     {"U64", 8},     {"BOOL", 1}, {"C64", 8},
};

SafetensorsEntry parse_tensor(const std::string& name, const Json& value, const std::filesystem::path& path,
                              const FileFault& fault) {
  const JsonObject object(value, path, name, fault);
  SafetensorsEntry tensor;
  tensor.name = name;
  tensor.dtype = object.text("dtype");
  const auto element_bytes = dtype_bytes(tensor.dtype);
  if (!element_bytes) object.fail("dtype", fmt::format("unsupported dtype: {}", tensor.dtype));
  tensor.shape = object.integers("shape", kMaxTensorDimensions);
  const std::vector<int64_t> offsets = object.integers("data_offsets", 2);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) object.fail("data_offsets", "not a begin and an end");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (shape_bytes(tensor.shape, *element_bytes) != tensor.end - tensor.begin) {
    object.fail("data_offsets", "does not match dtype and shape");
  }
  return tensor;
}

}  // namespace

std::optional<int64_t> dtype_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kDtypes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t bytes_per_element) {
  int64_t bytes = bytes_per_element;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

int64_t safetensors_text_bytes(std::string_view first_bytes, int64_t file_bytes,
                               const std::filesystem::path& path, const FileFault& fault) {
  uint64_t length = 0;
  for (size_t i = 0; i < first_bytes.size(); ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(first_bytes[i])) << (8 * i);
  }
  const int64_t most = std::min(kMaxSafetensorsHeaderBytes, file_bytes - kSafetensorsLengthBytes);
  if (first_bytes.size() != kSafetensorsLengthBytes || most < 0 || length > static_cast<uint64_t>(most)) {
    fault(path, fmt::format("not a safetensors file, or truncated: a header of {} bytes in {} bytes", length,
                            file_bytes));
  }
  return static_cast<int64_t>(length);
}

SafetensorsText parse_safetensors(std::string_view text, int64_t file_bytes,
                                  const std::filesystem::path& path, const FileFault& fault) {
  const Json root_json = parse_json(text, path, fault);
  const JsonObject root(root_json, path, "", fault);
  SafetensorsText header;
  header.bytes = kSafetensorsLengthBytes + static_cast<int64_t>(text.size());
  for (const auto& [name, value] : root_json.items()) {
    if (name != kSafetensorsMetadata) {
      header.tensors.push_back(parse_tensor(name, value, path, fault));
      continue;
    }
    const JsonObject metadata(value, path, name, fault);
    for (const auto& [key, text_value] : value.items()) header.metadata[key] = metadata.text(key.c_str());
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  int64_t next = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    if (tensor.begin != next) root.fail(tensor.name, "overlaps another tensor, or leaves a gap");
    next = tensor.end;
  }
  if (next != file_bytes - header.bytes) {
    fault(path, fmt::format("truncated or too long: {} bytes of data, but its header says {}",
                            file_bytes - header.bytes, next));
  }
  return header;
}

}  // namespace lockstep::base
