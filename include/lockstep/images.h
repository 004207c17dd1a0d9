#pragma once

// Image sets as tensors: transformed on the CPU by the loader's threads, or on the GPU.
//
//   auto images = lockstep::find_image_set("mnist", "", lockstep::Split::kTrain);
//   lockstep::Loader loader(lockstep::ImageDataset(images, {.mean = {0.13F}, .stddev = {0.31F}}),
//   {.batch_size = 64});

#include <c10/core/Device.h>
#include <lockstep/data.h>
#include <lockstep/image_files.h>

#include <cstdint>
#include <memory>
#include <vector>

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

// ImageDataset for data that fits on the device: all pictures are there as bytes, and crop,
// flip and normalisation happen there. Samples and their random numbers are those of an
// ImageDataset, bit for bit in every type, for any number of ranks.
//
// A batch costs one small copy to the device and six kernels on its current stream, and
// waits for nothing. It is cheapest to read in the consumer's own thread
// (LoaderOptions::num_workers = 0), which also keeps it on the consumer's stream.
class DeviceImageDataset : public Dataset {
 public:
  // Copies the whole source to the device: C * (H + 2 padding) * (W + 2 padding) bytes a
  // picture, after its resize and centre crop. ConfigError as for ImageDataset.
  DeviceImageDataset(const ImageSource& source, const ImageTransform& transform, c10::Device device);
  ~DeviceImageDataset() override;
  DeviceImageDataset(DeviceImageDataset&&) noexcept;

  int64_t size() const override;
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

 private:
  struct Impl;

  std::unique_ptr<const Impl> impl_;
};

// Some images of a source, in the order of `indices`. Shares the source. ConfigError: no
// source, or an index outside of it.
std::shared_ptr<const ImageSource> image_subset(std::shared_ptr<const ImageSource> source,
                                                std::vector<int64_t> indices);

// The first `count` images, or all where there are fewer. Those of one class may lie
// together in a file.
std::shared_ptr<const ImageSource> first_images(std::shared_ptr<const ImageSource> source, int64_t count);

struct ImageSplit {
  std::shared_ptr<const ImageSource> train;
  std::shared_ptr<const ImageSource> validation;
};

// Cuts a source in two at random: floor(size * train_fraction) images for training, the
// others for validation. The same for one seed everywhere, so that no rank trains on what
// another one validates with: that of Python's torch.utils.data.random_split with
// lengths [n, size - n] and a generator with this seed. ConfigError: a fraction that leaves
// one part empty.
ImageSplit split_images(const std::shared_ptr<const ImageSource>& source, double train_fraction,
                        uint64_t seed);

}  // namespace lockstep
