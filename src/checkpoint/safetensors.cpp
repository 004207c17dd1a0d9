#include "checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/json.h>

#include <algorithm>
#include <numeric>

#include "base/safetensors.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kHeaderAlignment = 8;

SafetensorsHeader read_header(const base::InputFile& file) {
  const std::string length = file.read_some(base::kSafetensorsLengthBytes, 0);
  std::string text(
      static_cast<size_t>(base::safetensors_text_bytes(length, file.bytes(), file.path(), fail_broken)),
      '\0');
  file.read(text.data(), static_cast<int64_t>(text.size()), base::kSafetensorsLengthBytes);
  base::SafetensorsText parsed = base::parse_safetensors(text, file.bytes(), file.path(), fail_broken);
  SafetensorsHeader header{.tensors = {}, .metadata = std::move(parsed.metadata), .bytes = parsed.bytes};
  header.tensors.reserve(parsed.tensors.size());
  for (base::SafetensorsEntry& entry : parsed.tensors) {
    header.tensors.push_back({.name = std::move(entry.name),
                              .dtype = safetensors_dtype(entry.dtype).value(),
                              .shape = std::move(entry.shape),
                              .begin = entry.begin,
                              .end = entry.end});
  }
  return header;
}

// The length field and the text.
std::string encode_header(const std::vector<SafetensorsTensor>& tensors) {
  Json root = Json::object();
  // Python's safetensors.torch writes this, and transformers requires it.
  root[base::kSafetensorsMetadata] = {{"format", "pt"}};
  for (const SafetensorsTensor& tensor : tensors) {
    root[tensor.name] = {{"dtype", safetensors_dtype_name(tensor.dtype).value()},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const JsonError& error) {
    throw ConfigError("checkpoint", fmt::format("the name of a tensor is not UTF-8: {}", error.what()));
  }
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > base::kMaxSafetensorsHeaderBytes) {
    throw ConfigError("checkpoint", fmt::format("too many tensors for one file: {} with a header of {} bytes",
                                                tensors.size(), text.size()));
  }
  std::string bytes(base::kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path, fail_unreadable), header_(read_header(file_)) {}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  for (const SafetensorsTensor& tensor : header_.tensors) result.push_back(tensor.name);
  std::sort(result.begin(), result.end());
  return result;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                  [&](const SafetensorsTensor& tensor) { return tensor.name == name; });
  if (found == header_.tensors.end()) {
    throw ConfigError("checkpoint", fmt::format("'{}' holds no tensor '{}'", path().string(), name));
  }
  at::Tensor out = at::empty(found->shape, found->dtype);
  file_.read(out.mutable_data_ptr(), found->end - found->begin, header_.bytes + found->begin);
  return out;
}

SafetensorsLayout layout_safetensors(const std::vector<SafetensorsTensor>& tensors) {
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), size_t{0});
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    return c10::elementSize(tensors[a].dtype) > c10::elementSize(tensors[b].dtype);
  });
  int64_t next = 0;
  layout.tensors.reserve(tensors.size());
  for (const size_t index : layout.order) {
    SafetensorsTensor& tensor = layout.tensors.emplace_back(tensors[index]);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    tensor.begin = next;
    next += base::shape_bytes(tensor.shape, element_bytes).value();
    tensor.end = next;
  }
  layout.header = encode_header(layout.tensors);
  layout.file_bytes = static_cast<int64_t>(layout.header.size()) + next;
  return layout;
}

void write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors) {
  std::vector<SafetensorsTensor> described;
  for (const auto& [name, tensor] : tensors) {
    if (!safetensors_dtype_name(tensor.scalar_type()) || tensor.layout() != at::kStrided) {
      throw ConfigError("interop",
                        fmt::format("safetensors cannot hold tensor '{}': {}", name, tensor.toString()));
    }
    described.push_back({.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  const SafetensorsLayout layout = layout_safetensors(described);
  base::publish_file(path, [&](const base::Append& append) {
    append(layout.header);
    for (const size_t index : layout.order) {
      const at::Tensor tensor =
          tensors[index].second.detach().cpu().resolve_conj().resolve_neg().contiguous();
      append({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  });
}

}  // namespace lockstep::checkpoint
