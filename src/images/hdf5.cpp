// LUMI's files: the datasets images and labels in one HDF5 file.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>

#include "images/hdf5_dataset.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

// Chunks that are whole images and not packed are used where they lie in the file, like
// data in one piece; others are unpacked into memory.
std::vector<ImageBlock> image_blocks(const Hdf5File& file, const Hdf5Dataset& dataset,
                                     const ImageTensor& tensor, const SharedBytes& mapped) {
  std::vector<ImageBlock> blocks;
  const int64_t stride = tensor.shape.bytes();
  if (dataset.begin) {
    blocks.push_back({mapped, static_cast<int64_t>(*dataset.begin), stride, tensor.count});
    return blocks;
  }
  const bool is_whole =
      std::equal(dataset.shape.begin() + 1, dataset.shape.end(), dataset.chunk_shape.begin() + 1);
  if (!is_whole || !dataset.filters.empty()) {
    blocks.push_back({unpack_chunks(file, dataset), 0, stride, tensor.count});
    return blocks;
  }
  int64_t left = tensor.count;
  for (const Hdf5Dataset::Chunk& chunk : dataset.chunks) {
    const int64_t count = std::min(left, dataset.chunk_shape[0]);
    if (static_cast<int64_t>(chunk.bytes) < count * stride) {
      fail_at(file.path(), static_cast<int64_t>(chunk.begin), "a chunk that is smaller than its images");
    }
    blocks.push_back({mapped, static_cast<int64_t>(chunk.begin), stride, count});
    left -= count;
  }
  return blocks;
}

ImageLabels read_labels(const Hdf5File& file, int64_t num_images, ImageClasses classes,
                        const SharedBytes& mapped) {
  const Hdf5Dataset dataset = read_dataset(file, "labels");
  const TensorPlace place{file.path(), dataset.name};
  // [n], or [n, 1] as some write it.
  if (dataset.elements() != num_images || dataset.shape[0] != num_images) {
    fail_tensor(place, fmt::format("the shape [{}] is not that of {} labels", fmt::join(dataset.shape, ", "),
                                   num_images));
  }
  const auto size = static_cast<size_t>(num_images * dataset.type.bytes);
  const SharedBytes unpacked = dataset.begin ? SharedBytes{} : unpack_chunks(file, dataset);
  return integer_labels(
      dataset.begin ? mapped.bytes.subspan(static_cast<size_t>(*dataset.begin), size) : unpacked.bytes,
      dataset.type, std::move(classes), dataset.begin, place);
}

}  // namespace
}  // namespace images

ImageSet open_hdf5(const std::filesystem::path& path, ImageClasses classes) {
  const images::SharedBytes mapped = images::map_file(path);
  const images::Hdf5File file(mapped.bytes, path);
  const images::Hdf5Dataset dataset = images::read_dataset(file, "images");
  const images::TensorPlace place{path, dataset.name};
  if (dataset.type.bytes != 1 || dataset.type.is_signed) {
    images::fail_tensor(place, "its elements are not unsigned bytes");
  }
  const images::ImageTensor tensor = images::image_tensor(dataset.shape, place);
  images::ImageLabels labels = images::read_labels(file, tensor.count, std::move(classes), mapped);
  return std::make_shared<images::PackedImages>(
      tensor.shape, images::image_blocks(file, dataset, tensor, mapped), std::move(labels));
}

}  // namespace lockstep
