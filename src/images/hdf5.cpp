// LUMI's files: the datasets images and labels in one HDF5 file.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "images/file_error.h"
#include "images/hdf5_file.h"
#include "images/label_check.h"
#include "images/tensor_layout.h"

namespace lockstep {
namespace images {
namespace {

constexpr int64_t kMaxRatio = 1032;  // of deflate

// Read by the library, one image after the other whoever asks.
class Hdf5Images final : public ImageSource {
 public:
  Hdf5Images(std::unique_ptr<const Hdf5Dataset> dataset, ImageShape shape, ImageLabels labels)
      : dataset_(std::move(dataset)), shape_(shape), labels_(std::move(labels)) {}

  int64_t size() const override { return static_cast<int64_t>(labels_.values.size()); }
  int64_t num_classes() const override { return labels_.num_classes; }
  std::span<const std::string> class_names() const override { return labels_.names; }
  int64_t label(int64_t index) const override {
    base::check(0 <= index && index < size(), "the index of an image is in range");
    return labels_.values[static_cast<size_t>(index)];
  }

  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override {
    base::check(0 <= index && index < size(), "the index of an image is in range");
    scratch.resize(static_cast<size_t>(shape_.bytes()));
    dataset_->read_bytes(index, 1, scratch.data());
    return {.pixels = scratch.data(),
            .channels = shape_.channels,
            .height = shape_.height,
            .width = shape_.width,
            .layout = shape_.layout};
  }

 private:
  std::unique_ptr<const Hdf5Dataset> dataset_;
  ImageShape shape_;
  ImageLabels labels_;
};

ImageLabels read_labels(const Hdf5Dataset& dataset, int64_t num_images, ImageClasses classes) {
  const TensorPlace place{dataset.path(), dataset.name()};
  const std::vector<int64_t>& shape = dataset.shape();
  if (dataset.element() == Hdf5Dataset::Element::kOther) fail_tensor(place, "its elements are no integers");
  // [n], or [n, 1] as some write it. Not more than the images: they have been checked.
  if (shape[0] != num_images ||
      !std::all_of(shape.begin() + 1, shape.end(), [](int64_t n) { return n == 1; })) {
    fail_tensor(place,
                fmt::format("the shape [{}] is not that of {} labels", fmt::join(shape, ", "), num_images));
  }
  LabelCheck check(classes.names.empty() ? classes.count : static_cast<int64_t>(classes.names.size()));
  ImageLabels labels;
  for (const int64_t label : dataset.read_integers()) {
    if (!check.take(label)) {
      fail_tensor(place, fmt::format("entry {}: {}", labels.values.size(), check.complaint(label)));
    }
    labels.values.push_back(static_cast<int32_t>(label));
  }
  labels.num_classes = check.num_classes();
  labels.names = std::move(classes.names);
  return labels;
}

// Whether the map shows what the library reads; if not, the library's word counts.
bool shows_same(const Hdf5Dataset& dataset, const ImageTensor& images, const uint8_t* mapped) {
  std::vector<uint8_t> read(static_cast<size_t>(images.shape.bytes()));
  for (const int64_t index : {int64_t{0}, images.count - 1}) {
    dataset.read_bytes(index, 1, read.data());
    if (std::memcmp(read.data(), mapped + index * images.shape.bytes(), read.size()) != 0) return false;
  }
  return true;
}

}  // namespace
}  // namespace images

ImageSet open_hdf5(const std::filesystem::path& path, ImageClasses classes) {
  images::SharedBytes file = images::map_file(path);
  const auto file_bytes = static_cast<int64_t>(file.bytes.size());
  auto dataset = std::make_unique<const images::Hdf5Dataset>(path, "images");
  const images::TensorPlace place{path, "images"};
  if (dataset->element() != images::Hdf5Dataset::Element::kByte) {
    images::fail_tensor(place, "its elements are not unsigned bytes");
  }
  const images::ImageTensor tensor =
      images::image_tensor(dataset->shape(), file_bytes * images::kMaxRatio, place);
  images::ImageLabels labels =
      images::read_labels(images::Hdf5Dataset(path, "labels"), tensor.count, std::move(classes));

  const int64_t bytes = tensor.count * tensor.shape.bytes();
  if (const auto offset = dataset->file_offset()) {
    if (*offset > file_bytes || bytes > file_bytes - *offset) {
      images::fail_at(path, *offset,
                      fmt::format("'images' of {} bytes goes beyond the end of the file", bytes));
    }
    if (images::shows_same(*dataset, tensor, file.bytes.data() + *offset)) {
      std::vector<images::ImageBlock> blocks;
      blocks.push_back({std::move(file), *offset, tensor.shape.bytes(), tensor.count});
      return std::make_shared<images::PackedImages>(tensor.shape, std::move(blocks), std::move(labels));
    }
  }
  return std::make_shared<images::Hdf5Images>(std::move(dataset), tensor.shape, std::move(labels));
}

}  // namespace lockstep
