// Tensors of images and labels: safetensors, .npy and .npz files.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/safetensors.h"
#include "base/tensor_file.h"
#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

// Integers of a tensor's dtype; nullopt: other elements.
std::optional<IntegerType> integer_type(std::string_view dtype) {
  if (dtype.size() < 2 || (dtype[0] != 'U' && dtype[0] != 'I')) return std::nullopt;
  const auto bytes = base::dtype_bytes(dtype);
  if (!bytes) return std::nullopt;
  return IntegerType{.bytes = static_cast<int>(*bytes), .is_signed = dtype[0] == 'I'};
}

// A tensor of a file with integers in C's order.
struct IntegerTensor {
  base::FileTensor tensor;
  IntegerType type;
  TensorPlace place;
};

IntegerTensor integers_of(base::FileTensor tensor, const TensorPlace& place) {
  const auto type = integer_type(tensor.dtype);
  if (!type) fail_tensor(place, fmt::format("its elements are no integers: {}", tensor.dtype));
  if (tensor.is_fortran) {
    fail_tensor(place, "'fortran_order' is True: save it with numpy.ascontiguousarray()");
  }
  return {std::move(tensor), *type, place};
}

IntegerTensor only_tensor(const TensorPlace& place) {
  std::vector<base::FileTensor> tensors = base::read_tensor_file(place.path, kComponent);
  if (tensors.size() != 1) fail_tensor(place, "the file has several tensors");
  return integers_of(std::move(tensors[0]), place);
}

IntegerTensor named_tensor(const std::vector<base::FileTensor>& tensors, const TensorPlace& place) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const base::FileTensor& tensor) { return tensor.name == place.name; });
  if (found == tensors.end()) fail_tensor(place, "the file has none of this name");
  return integers_of(*found, place);
}

// The tensor that FILE or FILE:NAME means.
IntegerTensor selected_tensor(const base::TensorSource& source,
                              std::initializer_list<std::string_view> usual) {
  std::vector<base::FileTensor> tensors = base::read_tensor_file(source.path, kComponent);
  std::vector<std::string> names;
  for (const base::FileTensor& tensor : tensors) names.push_back(tensor.name);
  const size_t index = base::select_tensor(source, names, usual, kComponent);
  return integers_of(std::move(tensors[index]), {source.path, *usual.begin()});
}

ImageSet make_set(IntegerTensor images, const IntegerTensor& labels, ImageClasses classes) {
  if (images.type.bytes != 1 || images.type.is_signed) {
    fail_tensor(images.place, "its elements are not unsigned bytes");
  }
  const ImageTensor tensor = image_tensor(images.tensor.shape, images.place);
  if (labels.tensor.shape.size() != 1 || labels.tensor.shape[0] != tensor.count) {
    fail_tensor(labels.place, fmt::format("the shape [{}] is not that of {} labels",
                                          fmt::join(labels.tensor.shape, ", "), tensor.count));
  }
  ImageLabels values = integer_labels(labels.tensor.bytes, labels.type, std::move(classes),
                                      labels.tensor.offset, labels.place);
  std::vector<ImageBlock> blocks;
  blocks.push_back(
      {{std::move(images.tensor.owner), images.tensor.bytes}, 0, tensor.shape.bytes(), tensor.count});
  return std::make_shared<PackedImages>(tensor.shape, std::move(blocks), std::move(values));
}

}  // namespace
}  // namespace images

ImageSet open_safetensors(const std::filesystem::path& path, ImageClasses classes) {
  const std::vector<base::FileTensor> tensors = base::read_tensor_file(path, images::kComponent);
  return images::make_set(images::named_tensor(tensors, {path, "images"}),
                          images::named_tensor(tensors, {path, "labels"}), std::move(classes));
}

ImageSet open_npy(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes) {
  return images::make_set(images::only_tensor({images_path, "images"}),
                          images::only_tensor({labels_path, "labels"}), std::move(classes));
}

ImageSet open_image_tensors(const std::string& images_source, const std::string& labels_source,
                            ImageClasses classes) {
  const base::TensorSource images = base::parse_tensor_source(images_source);
  const base::TensorSource labels = base::parse_tensor_source(labels_source);
  return images::make_set(images::selected_tensor(images, {"images", "inputs", "x"}),
                          images::selected_tensor(labels, {"labels", "targets", "y"}), std::move(classes));
}

}  // namespace lockstep
