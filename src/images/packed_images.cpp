#include "images/packed_images.h"

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

}  // namespace lockstep::images
