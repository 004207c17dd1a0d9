#include "images/packed_images.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::images {

PackedImages::PackedImages(ImageShape shape, std::vector<ImageBlock> blocks, ImageLabels labels)
    : shape_(shape), blocks_(std::move(blocks)), labels_(std::move(labels)) {
  int64_t end = 0;
  for (const ImageBlock& block : blocks_) {
    const auto bytes = static_cast<int64_t>(block.memory.bytes.size());
    base::check(block.first >= 0 && block.count > 0 && block.stride >= shape_.bytes() &&
                    block.count - 1 <= (bytes - block.first - shape_.bytes()) / block.stride,
                "the images of a block lie in its memory");
    ends_.push_back(end += block.count);
  }
  base::check_eq(end, size(), "as many labels as images");
}

int64_t PackedImages::label(int64_t index) const {
  base::check(0 <= index && index < size(), "the index of an image is in range");
  return labels_.values[static_cast<size_t>(index)];
}

ImageView PackedImages::image(int64_t index, std::vector<uint8_t>& /*scratch*/) const {
  base::check(0 <= index && index < size(), "the index of an image is in range");
  const auto place = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  const ImageBlock& block = blocks_[place];
  const int64_t within = index - (ends_[place] - block.count);
  return {.pixels = block.memory.bytes.data() + block.first + within * block.stride,
          .channels = shape_.channels,
          .height = shape_.height,
          .width = shape_.width,
          .layout = shape_.layout};
}

LabelCheck::LabelCheck(int64_t num_classes)
    : limit_(num_classes > 0 ? num_classes : kMaxClasses), is_given_(num_classes > 0) {}

bool LabelCheck::take(int64_t label) {
  largest_ = std::max(largest_, label);
  return 0 <= label && label < limit_;
}

std::string LabelCheck::error_text(int64_t label) const {
  return fmt::format("label {} is not in 0 to {}", label, limit_ - 1);
}

int64_t LabelCheck::num_classes() const { return is_given_ ? limit_ : largest_ + 1; }

namespace {

bool is_channels(int64_t size) { return size == 1 || size == 3; }

std::string shape_text(std::span<const int64_t> dimensions) {
  return fmt::format("[{}]", fmt::join(dimensions, ", "));
}

int64_t integer_at(const uint8_t* bytes, IntegerType type) {
  uint64_t value = 0;
  for (int i = 0; i < type.bytes; ++i) value |= uint64_t{bytes[i]} << (8 * i);
  const int unused = 64 - 8 * type.bytes;
  // Values above INT64_MAX become negative and are rejected as labels.
  return type.is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

}  // namespace

void fail_tensor(const TensorPlace& place, std::string_view reason) {
  throw ConfigError(kComponent,
                    fmt::format("'{}': tensor '{}': {}", place.path.string(), place.name, reason));
}

ImageTensor image_tensor(std::span<const int64_t> dimensions, const TensorPlace& place) {
  const auto fail = [&](std::string_view reason) {
    fail_tensor(place, fmt::format("the shape {} {}", shape_text(dimensions), reason));
  };
  const size_t rank = dimensions.size();
  const bool is_planar = rank == 4 && is_channels(dimensions[1]);
  const bool is_interleaved = rank == 4 && !is_planar && is_channels(dimensions[3]);
  if (rank != 3 && !is_planar && !is_interleaved) {
    fail(
        "is not one of images: [n, height, width], [n, 1 or 3, height, width] or [n, height, width, 1 or 3]");
  }
  if (std::find(dimensions.begin(), dimensions.end(), 0) != dimensions.end()) fail("is empty");
  const int64_t height = dimensions[is_planar ? 2 : 1], width = dimensions[is_planar ? 3 : 2];
  if (height > kMaxSide || width > kMaxSide || height * width > kMaxPixels)
    fail("has images that are too large");
  ImageTensor tensor{.count = dimensions[0], .shape = {}};
  tensor.shape.channels = rank == 3 ? 1 : static_cast<int>(dimensions[is_planar ? 1 : 3]);
  tensor.shape.height = static_cast<int>(height);
  tensor.shape.width = static_cast<int>(width);
  if (is_interleaved) tensor.shape.layout = ImageView::Layout::kInterleaved;
  return tensor;
}

ImageLabels integer_labels(std::span<const uint8_t> bytes, IntegerType type, ImageClasses classes,
                           std::optional<uint64_t> file_offset, const TensorPlace& place) {
  LabelCheck check(classes.names.empty() ? classes.count : static_cast<int64_t>(classes.names.size()));
  ImageLabels labels;
  const auto step = static_cast<size_t>(type.bytes);
  labels.values.reserve(bytes.size() / step);
  for (size_t at = 0; at + step <= bytes.size(); at += step) {
    const int64_t label = integer_at(bytes.data() + at, type);
    if (!check.take(label) && file_offset) {
      fail_at(place.path, static_cast<int64_t>(*file_offset + at), check.error_text(label));
    }
    if (!check.take(label))
      fail_tensor(place, fmt::format("entry {}: {}", at / step, check.error_text(label)));
    labels.values.push_back(static_cast<int32_t>(label));
  }
  labels.num_classes = check.num_classes();
  labels.names = std::move(classes.names);
  return labels;
}

}  // namespace lockstep::images
