#pragma once

#include <c10/core/Device.h>
#include <lockstep/dataset.h>
#include <lockstep/image_source.h>
#include <lockstep/image_transform.h>

#include <memory>

namespace lockstep {

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

}  // namespace lockstep
