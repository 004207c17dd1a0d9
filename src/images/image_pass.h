#pragma once

#include <lockstep/image_files.h>

#include <cstdint>
#include <vector>

#include "images/image_transform.h"
#include "images/pixel_values.h"
#include "images/resize.h"

namespace lockstep::images {

// Applies a transform to pictures with a given number of channels, from the picture's bytes to its
// place in a batch, in the batch's layout and type. A few rows at a time are arranged in the first
// level cache and converted from there; only a resize makes an intermediate picture. Thread-safe.
class ImagePass {
 public:
  // The memory of one thread.
  struct Scratch {
    std::vector<uint8_t> tile;
    std::vector<uint8_t> part;
    std::vector<uint8_t> colors;
    ResizeScratch resize;
  };

  // ConfigError: the transform is invalid, or is for another number of channels.
  ImagePass(const ImageTransform& transform, int channels);

  const ImageTransform& transform() const { return transform_; }
  int channels() const { return values_.channels(); }

  // Writes channels() * transformed_size() elements of the transform's type. ConfigError: the
  // picture has another number of channels, is empty, or is smaller than the crop.
  void run(const ImageView& image, const Augmentation& augmentation, Scratch& scratch, void* out) const;
  // The same with the augmentation drawn from the sample's seed.
  void run(const ImageView& image, uint64_t seed, Scratch& scratch, void* out) const;

 private:
  // A part of the resized picture, which begins at (top, left).
  struct Placed {
    ImageView image;
    int top = 0;
    int left = 0;
  };

  // run() for a picture with the channels, which is resized to `to`.
  void run(const ImageView& image, ImageSize to, const ImageWindow& window, const Augmentation& augmentation,
           Scratch& scratch, void* out) const;
  // Arranges the whole window, changes its colours and converts it: contrast needs all of its pixels.
  void run_with_colors(const Placed& picture, const ImageWindow& window, const Augmentation& augmentation,
                       std::vector<uint8_t>& memory, void* out) const;
  Placed resized(const ImageView& image, ImageSize to, const ImageWindow& window,
                 ResizeScratch& scratch) const;
  // Copies rows [first, last) of the window to `out`, in the output's layout. Channel planes are
  // channel_step bytes apart.
  void arrange_rows(const Placed& picture, const ImageWindow& window, bool flip, int first, int last,
                    ptrdiff_t channel_step, uint8_t* out) const;
  // Converts these rows into their place in the output.
  void convert_rows(const uint8_t* tile, ImageSize size, int first, int last, void* out) const;

  ImageTransform transform_;
  PixelValues values_;
};

}  // namespace lockstep::images
