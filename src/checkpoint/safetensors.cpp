#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>

#include "base/safetensors.h"
#include "checkpoint/dtype.h"
#include "checkpoint/json_text.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kAlignment = 8;

}  // namespace

std::string encode_header(const SafetensorsHeader& header) {
  Json root = Json::object();
  if (!header.metadata.empty()) root[kMetadataKey] = header.metadata;
  for (const StoredTensor& tensor : header.tensors) {
    root[tensor.name] = {{"dtype", dtype_name(tensor.dtype).value()},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const JsonError& error) {
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
  return base::safetensors_text_bytes(first_bytes, file_bytes, path, fail_broken);
}

SafetensorsHeader parse_header(std::string_view text, int64_t file_bytes, const std::filesystem::path& path) {
  base::SafetensorsText parsed = base::parse_safetensors(text, file_bytes, path, fail_broken);
  SafetensorsHeader header{.tensors = {}, .metadata = std::move(parsed.metadata), .bytes = parsed.bytes};
  header.tensors.reserve(parsed.tensors.size());
  for (base::SafetensorsEntry& entry : parsed.tensors) {
    header.tensors.push_back({.name = std::move(entry.name),
                              .dtype = dtype_of(entry.dtype).value(),
                              .shape = std::move(entry.shape),
                              .begin = entry.begin,
                              .end = entry.end});
  }
  return header;
}

}  // namespace lockstep::checkpoint
