#pragma once

// Image sets as tensors for a loader: transformed on the CPU by the loader's threads (ImageDataset), or
// on a GPU that holds all pictures (DeviceImageDataset). image_files.h opens the image sets.
//
// Example:
//
//   const auto images = lockstep::find_image_set("mnist", "synthetic", lockstep::Split::kTest);
//   lockstep::Loader pictures(lockstep::ImageDataset(images, {.mean = {0.13F}, .stddev = {0.31F}}),
//                             {.batch_size = 64, .num_workers = 2});
//   std::printf("%d batches\n", int(pictures.num_batches()));
//
// More: docs/data.md

#include <c10/core/Device.h>
#include <lockstep/data.h>
#include <lockstep/image_files.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

// Transformed pictures of a source: samples are {image [C, H, W], label (int64)}. A batch is written
// once, from the source's bytes to the batch's memory in its final layout and type; with pin_memory
// that memory is page-locked. With kChannelsLast the images of a batch are in ATen's channels_last
// format. Shares the source.
class ImageDataset : public Dataset {
 public:
  // Reads the first picture. All others must have the same number of channels, and the same size after
  // the transform. ConfigError: no source, an empty source, or an invalid transform.
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

// ImageDataset for data that fit on the device: all pictures are there as bytes, and the device crops,
// flips and normalises. Samples and random numbers are those of an ImageDataset, bit for bit in every
// type, for any number of ranks.
//
// A batch costs one small copy to the device and six kernels on its current stream; the host does not
// wait. It is cheapest to read in the consumer's own thread (LoaderOptions::num_workers = 0), which
// also keeps it on the consumer's stream.
class DeviceImageDataset : public Dataset {
 public:
  // Copies the whole source to the device: C * (H + 2 padding) * (W + 2 padding) bytes for each
  // picture, after its resize and centre crop. Does not keep the source. ConfigError: as ImageDataset.
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

// MixUp as torchvision's v2.MixUp(alpha, num_classes) computes it: every image of a batch becomes `share` of
// itself and 1 - share of the image before it (of the first one: the last), and so does its label as
// probabilities, float [B, num_classes]. Labels may be such probabilities already. The images must be of a
// floating type. ConfigError: they are bytes, or a label is not below num_classes.
Batch mix_up(const Batch& batch, double share, int64_t num_classes);

// The share for a seed, from the distribution Beta(alpha, alpha): that of torchvision after
// torch.manual_seed(seed). ConfigError: alpha is not above 0.
double draw_mix_up(double alpha, uint64_t seed);

// A data set of {image, label} whose batches are mixed, for training only. The share of a batch depends on
// the seed of its first sample, so it is another one in every batch and epoch. The loss gets labels of [B,
// num_classes]: cross_entropy takes them.
//
//   lockstep::Loader loader(lockstep::MixUpDataset(images, /*alpha=*/0.2, /*num_classes=*/100),
//                           {.batch_size = 256, .shuffle = true, .num_workers = 4});
class MixUpDataset : public Dataset {
 public:
  // Shares the images. ConfigError: no images, or alpha or num_classes is not above 0.
  MixUpDataset(std::shared_ptr<const Dataset> images, double alpha, int64_t num_classes);

  int64_t size() const override;
  // A sample alone is mixed with itself.
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

 private:
  std::shared_ptr<const Dataset> images_;
  double alpha_;
  int64_t num_classes_;
};

// The images of a source at `indices`, in that order. Shares the source. ConfigError: no source, or an
// index outside of it.
std::shared_ptr<const ImageSource> image_subset(std::shared_ptr<const ImageSource> source,
                                                std::vector<int64_t> indices);

// The first `count` images, or all if there are fewer. Some files have the images of one class
// together, so these may be of one class only.
std::shared_ptr<const ImageSource> first_images(std::shared_ptr<const ImageSource> source, int64_t count);

struct ImageSplit {
  std::shared_ptr<const ImageSource> train;
  std::shared_ptr<const ImageSource> validation;
};

// Splits a source at random: floor(size * train_fraction) images for training, the others for
// validation. The split depends only on the seed and the size, so it is the same on all ranks. It is
// that of Python's torch.utils.data.random_split with lengths [n, size - n] and a generator with this
// seed. ConfigError: one part would be empty.
ImageSplit split_images(const std::shared_ptr<const ImageSource>& source, double train_fraction,
                        uint64_t seed);

}  // namespace lockstep
