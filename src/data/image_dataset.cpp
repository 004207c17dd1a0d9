#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/image_dataset.h>

#include <array>
#include <optional>

#include "data/failure.h"
#include "data/image_tensor.h"
#include "images/image_pass.h"

namespace lockstep {
namespace {

// What a thread needs to read a picture and to transform it.
struct Workspace {
  std::vector<uint8_t> decoded;
  images::ImagePass::Scratch pass;
};

}  // namespace

struct ImageDataset::Impl {
  Impl(std::shared_ptr<const ImageSource> given, const ImageTransform& transform)
      : source(std::move(given)), pass(transform, channels_of(source.get())) {
    std::vector<uint8_t> scratch;
    const ImageView first = source->image(0, scratch);
    size = transformed_size(transform, {first.height, first.width});
    shape = {first.channels, size.height, size.width};
  }

  static int channels_of(const ImageSource* source) {
    if (source == nullptr) throw ConfigError("data", "an ImageDataset needs a source of images");
    if (source->size() == 0) throw ConfigError("data", "the source of an ImageDataset has no images");
    std::vector<uint8_t> scratch;
    return source->image(0, scratch).channels;
  }

  size_t sample_bytes() const {
    return static_cast<size_t>(shape[0] * shape[1] * shape[2]) * bytes_of(pass.transform().type);
  }

  void check_index(int64_t index) const {
    if (index >= 0 && index < source->size()) return;
    throw ConfigError("data", fmt::format("no such sample: index={}, samples={}", index, source->size()));
  }

  void read(int64_t index, uint64_t seed, Workspace& workspace, void* out) const {
    const ImageView image = source->image(index, workspace.decoded);
    const ImageSize given{image.height, image.width};
    const ImageSize becomes = transformed_size(pass.transform(), given);
    if (becomes != size) {
      throw ConfigError("data", fmt::format("images of one batch must be equally large, crop them: image {} "
                                            "is {}x{} after its transform, image 0 is {}x{}",
                                            index, becomes.height, becomes.width, size.height, size.width));
    }
    pass.run(image, seed, workspace.pass, out);
  }

  Batch read_batch(std::span<const int64_t> indices, const SampleSeeds& seeds, bool pinned) const {
    const auto count = static_cast<int64_t>(indices.size());
    const at::Tensor images = data::empty_images(pass.transform(), count, shape, pinned);
    const at::Tensor labels = at::empty({count}, at::TensorOptions(at::kLong).pinned_memory(pinned));
    auto* out = static_cast<char*>(images.mutable_data_ptr());
    auto* label = labels.mutable_data_ptr<int64_t>();
    Workspace workspace;
    for (const int64_t index : indices) {
      check_index(index);
      try {
        read(index, seeds.of(index), workspace, out);
        *label++ = source->label(index);
      } catch (...) {
        data::rethrow_as_config_error(fmt::format("the dataset failed at sample {}", index));
      }
      out += sample_bytes();
    }
    return {{images, labels}, {}};
  }

  const std::shared_ptr<const ImageSource> source;
  const images::ImagePass pass;
  ImageSize size;  // of every sample
  std::array<int64_t, 3> shape = {};
};

ImageDataset::ImageDataset(std::shared_ptr<const ImageSource> source, const ImageTransform& transform)
    : impl_(std::make_unique<const Impl>(std::move(source), transform)) {}
ImageDataset::~ImageDataset() = default;
ImageDataset::ImageDataset(ImageDataset&&) noexcept = default;

int64_t ImageDataset::size() const { return impl_->source->size(); }

Example ImageDataset::get(int64_t index, uint64_t seed) const {
  impl_->check_index(index);
  const at::Tensor image = data::empty_images(impl_->pass.transform(), 1, impl_->shape, /*pinned=*/false);
  Workspace workspace;
  impl_->read(index, seed, workspace, image.mutable_data_ptr());
  return {image[0], at::scalar_tensor(impl_->source->label(index), at::kLong)};
}

Batch ImageDataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  return impl_->read_batch(indices, seeds, /*pinned=*/false);
}

Batch ImageDataset::get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  return impl_->read_batch(indices, seeds, /*pinned=*/true);
}

const ImageTransform& ImageDataset::transform() const { return impl_->pass.transform(); }

const ImageSource& ImageDataset::source() const { return *impl_->source; }

std::span<const int64_t> ImageDataset::image_shape() const { return impl_->shape; }

}  // namespace lockstep
