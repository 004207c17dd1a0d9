// Images and labels as they lie in memory: tensors of a safetensors file, or two .npy files.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <utility>

#include "base/safetensors.h"
#include "images/file_error.h"
#include "images/npy.h"
#include "images/packed_images.h"
#include "images/tensor_layout.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// One tensor of a mapped file, known to lie within it.
struct MappedTensor {
  SharedBytes file;
  uint64_t begin = 0;
  std::vector<int64_t> shape;
  IntegerType type;
  TensorPlace place;
};

void fault(const Path& path, const std::string& reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken: {}", path.string(), reason));
}

std::optional<IntegerType> integer_type(std::string_view dtype) {
  if (dtype.size() < 2 || (dtype[0] != 'U' && dtype[0] != 'I')) return std::nullopt;
  const auto bytes = base::dtype_bytes(dtype);
  if (!bytes) return std::nullopt;
  return IntegerType{.bytes = static_cast<int>(*bytes), .is_signed = dtype[0] == 'I'};
}

MappedTensor find_tensor(const base::SafetensorsText& header, const SharedBytes& file,
                         const TensorPlace& place) {
  const auto found =
      std::find_if(header.tensors.begin(), header.tensors.end(),
                   [&](const base::SafetensorsEntry& entry) { return entry.name == place.name; });
  if (found == header.tensors.end()) fail_tensor(place, "the file has none of this name");
  const auto type = integer_type(found->dtype);
  if (!type) fail_tensor(place, fmt::format("its elements are no integers: {}", found->dtype));
  return {file, static_cast<uint64_t>(header.bytes + found->begin), found->shape, *type, place};
}

MappedTensor map_npy(const TensorPlace& place) {
  SharedBytes file = map_file(place.path);
  NpyHeader header = parse_npy(file.bytes, place.path);
  return {std::move(file), header.begin, std::move(header.shape), header.type, place};
}

ImageSet make_set(MappedTensor images, const MappedTensor& labels, ImageClasses classes) {
  if (images.type.bytes != 1 || images.type.is_signed) {
    fail_tensor(images.place, "its elements are not unsigned bytes");
  }
  const ImageTensor tensor = image_tensor(images.shape, images.place);
  if (labels.shape.size() != 1 || labels.shape[0] != tensor.count) {
    fail_tensor(labels.place, fmt::format("the shape [{}] is not that of {} labels",
                                          fmt::join(labels.shape, ", "), tensor.count));
  }
  const auto label_bytes = labels.file.bytes.subspan(static_cast<size_t>(labels.begin),
                                                     static_cast<size_t>(tensor.count * labels.type.bytes));
  ImageLabels values =
      integer_labels(label_bytes, labels.type, std::move(classes), labels.begin, labels.place);
  std::vector<ImageBlock> blocks;
  blocks.push_back(
      {std::move(images.file), static_cast<int64_t>(images.begin), tensor.shape.bytes(), tensor.count});
  return std::make_shared<PackedImages>(tensor.shape, std::move(blocks), std::move(values));
}

}  // namespace
}  // namespace images

ImageSet open_safetensors(const std::filesystem::path& path, ImageClasses classes) {
  const images::SharedBytes file = images::map_file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  const auto size = static_cast<int64_t>(bytes.size());
  const std::string_view length = bytes.substr(0, base::kSafetensorsLengthBytes);
  const int64_t text_bytes = base::safetensors_text_bytes(length, size, path, images::fault);
  const base::SafetensorsText header =
      base::parse_safetensors(bytes.substr(base::kSafetensorsLengthBytes, static_cast<size_t>(text_bytes)),
                              size, path, images::fault);
  return images::make_set(images::find_tensor(header, file, {path, "images"}),
                          images::find_tensor(header, file, {path, "labels"}), std::move(classes));
}

ImageSet open_npy(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes) {
  return images::make_set(images::map_npy({images_path, "images"}), images::map_npy({labels_path, "labels"}),
                          std::move(classes));
}

}  // namespace lockstep
