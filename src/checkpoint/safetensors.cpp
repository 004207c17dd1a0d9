#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/json_text.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kAlignment = 8;

StoredTensor parse_tensor(const std::string& name, const json& value, const std::filesystem::path& path) {
  const JsonObject object(value, path, name);
  StoredTensor tensor;
  tensor.name = name;
  const std::string dtype = object.text("dtype");
  if (!dtype_of(dtype)) object.fail("dtype", fmt::format("no dtype that we can hold: {}", dtype));
  tensor.dtype = *dtype_of(dtype);
  tensor.shape = object.integers("shape", kMaxDimensions);
  const std::vector<int64_t> offsets = object.integers("data_offsets", 2);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) object.fail("data_offsets", "not a begin and an end");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  const auto bytes = shape_bytes(tensor.shape, static_cast<int64_t>(c10::elementSize(tensor.dtype)));
  if (bytes != tensor.end - tensor.begin) object.fail("data_offsets", "not the bytes of dtype and shape");
  return tensor;
}

}  // namespace

std::string encode_header(const SafetensorsHeader& header) {
  json root = json::object();
  if (!header.metadata.empty()) root[kMetadataKey] = header.metadata;
  for (const StoredTensor& tensor : header.tensors) {
    root[tensor.name] = {{"dtype", dtype_name(tensor.dtype).value()},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const json::exception& error) {
    throw ConfigError("checkpoint", fmt::format("the name of a tensor is not UTF-8: {}", error.what()));
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw ConfigError("checkpoint", fmt::format("too many tensors for one file: {} with a header of {} bytes",
                                                header.tensors.size(), text.size()));
  }
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

int64_t header_text_bytes(std::string_view first_bytes, int64_t file_bytes,
                          const std::filesystem::path& path) {
  uint64_t length = 0;
  for (size_t i = 0; i < first_bytes.size(); ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(first_bytes[i])) << (8 * i);
  }
  const int64_t most = std::min(kMaxHeaderBytes, file_bytes - kLengthBytes);
  if (first_bytes.size() != kLengthBytes || most < 0 || length > static_cast<uint64_t>(most)) {
    throw CheckpointError(fmt::format("'{}' is no safetensors file, or cut: a header of {} bytes in {} bytes",
                                      path.string(), length, file_bytes));
  }
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_header(std::string_view text, int64_t file_bytes, const std::filesystem::path& path) {
  const json root_json = parse_json(text, path);
  const JsonObject root(root_json, path, "");
  SafetensorsHeader header;
  header.bytes = kLengthBytes + static_cast<int64_t>(text.size());
  for (const auto& [name, value] : root_json.items()) {
    if (name != kMetadataKey) {
      header.tensors.push_back(parse_tensor(name, value, path));
      continue;
    }
    const JsonObject metadata(value, path, name);
    for (const auto& [key, text_value] : value.items()) header.metadata[key] = metadata.text(key.c_str());
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t next = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.begin != next) root.fail(tensor.name, "overlaps another tensor, or leaves a gap");
    next = tensor.end;
  }
  if (next != file_bytes - header.bytes) {
    throw CheckpointError(fmt::format("'{}' is cut or too long: {} bytes of data where its header says {}",
                                      path.string(), file_bytes - header.bytes, next));
  }
  return header;
}

}  // namespace lockstep::checkpoint
