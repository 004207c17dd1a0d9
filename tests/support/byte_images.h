#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <lockstep/image_files.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace lockstep::test {

// What a training on CIFAR-100 does to a picture.
inline const ImageTransform kCifarTransform{.random_crop = 32,
                                            .padding = 4,
                                            .flip_probability = 0.5,
                                            .mean = {0.5071F, 0.4865F, 0.4409F},
                                            .stddev = {0.2673F, 0.2564F, 0.2762F}};

// Planar pictures of random bytes in memory; the label of a picture is its index modulo 4.
class ByteImages : public ImageSource {
 public:
  // counting: the bytes of each picture are 0, 1, 2, ... instead.
  ByteImages(int64_t count, ImageSize size, int channels, bool counting = false) : channels_(channels) {
    std::mt19937 random(5);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<uint8_t> pixels(static_cast<size_t>(channels * size.height * size.width));
      for (size_t j = 0; j < pixels.size(); ++j) pixels[j] = static_cast<uint8_t>(counting ? j : random());
      pictures_.push_back({size, std::move(pixels)});
    }
  }

  // A picture of another size, no larger one.
  void set_size(size_t index, ImageSize size) { pictures_[index].size = size; }
  // This one cannot be read.
  void fail_at(int64_t index) { broken_ = index; }

  at::Tensor tensor(int64_t index) const {
    const Picture& picture = pictures_[static_cast<size_t>(index)];
    return at::from_blob(const_cast<uint8_t*>(picture.pixels.data()),
                         {channels_, picture.size.height, picture.size.width}, at::kByte);
  }

  int64_t size() const override { return static_cast<int64_t>(pictures_.size()); }
  int64_t label(int64_t index) const override { return index % 4; }
  int64_t num_classes() const override { return 4; }
  ImageView image(int64_t index, std::vector<uint8_t>& /*scratch*/) const override {
    if (index == broken_) throw std::runtime_error("broken image");
    const Picture& picture = pictures_[static_cast<size_t>(index)];
    return {picture.pixels.data(), channels_, picture.size.height, picture.size.width,
            ImageView::Layout::kPlanar};
  }

 private:
  struct Picture {
    ImageSize size;
    std::vector<uint8_t> pixels;
  };

  int channels_;
  std::vector<Picture> pictures_;
  int64_t broken_ = -1;
};

}  // namespace lockstep::test
