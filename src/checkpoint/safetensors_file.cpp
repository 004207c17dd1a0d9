#include "checkpoint/safetensors_file.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

SafetensorsHeader read_header(const InputFile& file) {
  std::string length(static_cast<size_t>(std::min(kLengthBytes, file.bytes())), '\0');
  file.read(length.data(), static_cast<int64_t>(length.size()), 0);
  std::string text(static_cast<size_t>(header_text_bytes(length, file.bytes(), file.path())), '\0');
  file.read(text.data(), static_cast<int64_t>(text.size()), kLengthBytes);
  return parse_header(text, file.bytes(), file.path());
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(read_header(file_)) {}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  for (const StoredTensor& tensor : header_.tensors) result.push_back(tensor.name);
  std::sort(result.begin(), result.end());
  return result;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                  [&](const StoredTensor& tensor) { return tensor.name == name; });
  if (found == header_.tensors.end()) {
    throw ConfigError("checkpoint", fmt::format("'{}' holds no tensor '{}'", path().string(), name));
  }
  at::Tensor out = at::empty(found->shape, found->dtype);
  file_.read(out.mutable_data_ptr(), found->end - found->begin, header_.bytes + found->begin);
  return out;
}

}  // namespace lockstep::checkpoint
