#pragma once

#include <lockstep/dataset.h>
#include <lockstep/image_source.h>
#include <lockstep/image_transform.h>

#include <memory>

namespace lockstep {

// Pictures of a source, transformed: samples are {image [C, H, W], label (int64)}. A batch
// is written once, from the source's bytes to the batch's memory in its final layout and
// type, which is page-locked where the loader asks for that. With kChannelsLast the images
// of a batch are in ATen's channels_last format.
class ImageDataset : public Dataset {
 public:
  // ConfigError: no source, an empty one, or a transform that does not hold. The first
  // picture is read; all others must have as many channels, and come out equally large.
  ImageDataset(std::shared_ptr<const ImageSource> source, const ImageTransform& transform);
  ~ImageDataset() override;
  ImageDataset(ImageDataset&&) noexcept;

  int64_t size() const override;
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;
  Batch get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

  const ImageTransform& transform() const;
  const ImageSource& source() const;
  // [C, H, W] of every sample.
  std::span<const int64_t> image_shape() const;

 private:
  struct Impl;

  std::unique_ptr<const Impl> impl_;
};

}  // namespace lockstep
