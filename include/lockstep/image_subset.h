#pragma once

#include <lockstep/image_source.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

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
