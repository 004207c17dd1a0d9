#include <ATen/TensorIndexing.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/images.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "data/failure.h"
#include "images/image_pass.h"
#include "images/pixel_values.h"

namespace lockstep {
namespace {

c10::ScalarType scalar_type_of(ImageTransform::Type type) {
  switch (type) {
    case ImageTransform::Type::kFloat32: return at::kFloat;
    case ImageTransform::Type::kFloat16: return at::kHalf;
    case ImageTransform::Type::kBFloat16: return at::kBFloat16;
    default: return at::kByte;
  }
}

// [count, C, H, W] in the memory format and the type of the transform, not initialised.
at::Tensor empty_images(const ImageTransform& transform, int64_t count, const std::array<int64_t, 3>& shape,
                        bool pinned) {
  const auto options = at::TensorOptions(scalar_type_of(transform.type)).pinned_memory(pinned);
  const auto format = transform.layout == ImageTransform::Layout::kChannelsLast
                          ? at::MemoryFormat::ChannelsLast
                          : at::MemoryFormat::Contiguous;
  return at::empty({count, shape[0], shape[1], shape[2]}, options, format);
}

// Buffers of one thread for reading and transforming a picture.
struct Workspace {
  std::vector<uint8_t> decoded;
  images::ImagePass::Scratch pass;
};

// --- of DeviceImageDataset ---

using Shape = std::vector<int64_t>;
using SeedOf = std::function<uint64_t(int64_t index)>;

// Pictures read from the source at a time.
constexpr int64_t kChunk = 1024;

// The part of the transform that is the same in every epoch. Its result is bytes.
ImageTransform fixed_part(const ImageTransform& transform) {
  return {.resize = transform.resize,
          .center_crop = transform.center_crop,
          .layout = transform.layout,
          .type = ImageTransform::Type::kUInt8};
}

// The part of the transform that differs in every epoch.
ImageTransform random_part(const ImageTransform& transform) {
  return {.random_crop = transform.random_crop,
          .padding = transform.padding,
          .flip_probability = transform.flip_probability};
}

// A pointer that does not own the source: the caller keeps it alive.
std::shared_ptr<const ImageSource> borrowed(const ImageSource& source) {
  return {std::shared_ptr<const ImageSource>(), &source};
}

// [C * 256]: for each channel the values that its bytes are converted to.
at::Tensor value_table(const ImageTransform& transform, int channels) {
  ImageTransform in_floats = transform;
  in_floats.type = ImageTransform::Type::kFloat32;
  const images::PixelValues values(in_floats, channels);
  constexpr int64_t kBytes = images::PixelValues::kBytes;
  const at::Tensor table = at::empty({channels * kBytes}, at::kFloat);
  std::memcpy(table.mutable_data_ptr(), values.table(0), table.nbytes());
  return table.to(scalar_type_of(transform.type));
}

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
    const at::Tensor images = empty_images(pass.transform(), count, shape, pinned);
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
  const at::Tensor image = empty_images(impl_->pass.transform(), 1, impl_->shape, /*pinned=*/false);
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

// --- DeviceImageDataset ---

struct DeviceImageDataset::Impl {
  Impl(const ImageSource& source, const ImageTransform& given, c10::Device on)
      : transform(given), device(on) {
    transform.validate();
    if (transform.random_resized_crop > 0) {
      throw ConfigError("data",
                        "random_resized_crop needs an ImageDataset: a DeviceImageDataset does not resize");
    }
    if (transform.color_jitter.is_set()) {
      throw ConfigError("data",
                        "color_jitter needs an ImageDataset: a DeviceImageDataset does not change colours");
    }
    const ImageDataset fixed(borrowed(source), fixed_part(transform));
    const auto shape = fixed.image_shape();
    channels = static_cast<int>(shape[0]);
    picture = {static_cast<int>(shape[1]), static_cast<int>(shape[2])};
    out = transformed_size(random_part(transform), picture);
    copy_pictures(fixed);
    if (transform.type != ImageTransform::Type::kUInt8) table = value_table(transform, channels).to(device);
    const auto indices = at::TensorOptions(at::kLong).device(device);
    const bool last = transform.layout == ImageTransform::Layout::kChannelsLast;
    channel = at::arange(channels, indices).view(last ? Shape{1, 1, 1, -1} : Shape{1, -1, 1, 1});
    table_start = channel.mul(images::PixelValues::kBytes);
    row = at::arange(out.height, indices).view(last ? Shape{1, -1, 1, 1} : Shape{1, 1, -1, 1});
    column = at::arange(out.width, indices).view(last ? Shape{1, 1, -1, 1} : Shape{1, 1, 1, -1});
    // The threads of a loader read these tensors on other streams.
    if (!pictures.is_cpu()) {
      c10::impl::VirtualGuardImpl(device.type()).getStream(pictures.device()).synchronize();
    }
  }

  // The pictures are stored with their padding, so that every crop is within bounds.
  void copy_pictures(const ImageDataset& fixed) {
    const int64_t padding = transform.padding;
    const auto bytes = at::TensorOptions(at::kByte).device(device);
    pictures =
        at::zeros({fixed.size(), channels, picture.height + 2 * padding, picture.width + 2 * padding}, bytes);
    labels = at::empty({fixed.size()}, at::TensorOptions(at::kLong).device(device));
    const at::Tensor inside = pictures.narrow(2, padding, picture.height).narrow(3, padding, picture.width);
    for (int64_t first = 0; first < fixed.size(); first += kChunk) {
      std::vector<int64_t> indices(static_cast<size_t>(std::min(kChunk, fixed.size() - first)));
      for (size_t i = 0; i < indices.size(); ++i) indices[i] = first + static_cast<int64_t>(i);
      const Batch batch = fixed.get_batch(indices, SampleSeeds(0, 0));
      inside.narrow(0, first, batch.size()).copy_(batch.data());
      labels.narrow(0, first, batch.size()).copy_(batch.target());
    }
  }

  // [4, B]: of each sample the index, the first row, the first column, and the step from one column
  // to the next (-1: flipped).
  at::Tensor draw(std::span<const int64_t> indices, const SeedOf& seed_of) const {
    const auto count = static_cast<int64_t>(indices.size());
    const bool pinned = !device.is_cpu();  // the copy to the device then does not block
    const at::Tensor drawn = at::empty({4, count}, at::TensorOptions(at::kLong).pinned_memory(pinned));
    auto* numbers = drawn.mutable_data_ptr<int64_t>();
    const ImageTransform random = random_part(transform);
    for (const int64_t index : indices) {
      if (index < 0 || index >= pictures.size(0)) {
        throw ConfigError("data",
                          fmt::format("no such sample: index={}, samples={}", index, pictures.size(0)));
      }
      const Augmentation augmentation = draw_augmentation(random, picture, seed_of(index));
      numbers[0] = index;
      numbers[count] = augmentation.top;
      numbers[2 * count] = augmentation.left + (augmentation.flip ? out.width - 1 : 0);
      numbers[3 * count] = augmentation.flip ? -1 : 1;
      ++numbers;
    }
    return drawn.to(device, /*non_blocking=*/true);
  }

  Batch read(std::span<const int64_t> indices, const SeedOf& seed_of) const {
    const at::Tensor drawn = draw(indices, seed_of).view({4, -1, 1, 1, 1});
    const at::Tensor rows = drawn[1].add(row);
    const at::Tensor columns = drawn[2].addcmul(drawn[3], column);
    at::Tensor images = pictures.index({drawn[0], channel, rows, columns});
    if (table.defined()) images = table.index({table_start.add(images)});
    if (transform.layout == ImageTransform::Layout::kChannelsLast) images = images.permute({0, 3, 1, 2});
    return {{images, labels.index_select(0, drawn[0].flatten())}, {}};
  }

  ImageTransform transform;
  c10::Device device;
  int channels = 0;
  ImageSize picture;       // before the random crop, without its padding
  ImageSize out;           // of a sample
  at::Tensor pictures;     // [N, C, H + 2 padding, W + 2 padding], bytes
  at::Tensor labels;       // [N]
  at::Tensor table;        // [C * 256] in the samples' type; undefined if the samples are bytes
  at::Tensor table_start;  // where the table of each channel starts
  // 0, 1, 2, ... along one dimension of a batch, in the order of its memory.
  at::Tensor channel;
  at::Tensor row;
  at::Tensor column;
};

DeviceImageDataset::DeviceImageDataset(const ImageSource& source, const ImageTransform& transform,
                                       c10::Device device)
    : impl_(std::make_unique<const Impl>(source, transform, device)) {}
DeviceImageDataset::~DeviceImageDataset() = default;
DeviceImageDataset::DeviceImageDataset(DeviceImageDataset&&) noexcept = default;

int64_t DeviceImageDataset::size() const { return impl_->pictures.size(0); }

Example DeviceImageDataset::get(int64_t index, uint64_t seed) const {
  const Batch batch = impl_->read({&index, 1}, [seed](int64_t) { return seed; });
  return {batch.data()[0], batch.target()[0]};
}

Batch DeviceImageDataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  return impl_->read(indices, [&seeds](int64_t index) { return seeds.of(index); });
}

}  // namespace lockstep
