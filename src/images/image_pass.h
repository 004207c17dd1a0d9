#pragma once

#include <lockstep/image_source.h>
#include <lockstep/image_transform.h>

#include <cstdint>
#include <vector>

#include "images/image_window.h"
#include "images/pixel_values.h"
#include "images/resize.h"

namespace lockstep::images {

// A transform made ready for pictures of some number of channels: from a picture's bytes to
// their place in a batch, in the batch's layout and type. A few rows at a time are put in
// order in the first level cache and converted from there; there is no picture between,
// unless it has to be resized. Any number of threads may use it at once.
class ImagePass {
 public:
  // A thread's memory.
  struct Scratch {
    std::vector<uint8_t> tile;
    ResizeScratch resize;
  };

  // ConfigError: the transform does not hold, or is for another number of channels.
  ImagePass(const ImageTransform& transform, int channels);

  const ImageTransform& transform() const { return transform_; }
  int channels() const { return values_.channels(); }

  // Writes channels * size pixels of the transform's type, size being transformed_size()
  // of this picture. ConfigError: another number of channels, an empty picture, or a crop
  // that does not fit in it.
  void run(const ImageView& image, const Augmentation& augmentation, Scratch& scratch, void* out) const;
  // The same, drawn from the sample's seed.
  void run(const ImageView& image, uint64_t seed, Scratch& scratch, void* out) const;

 private:
  // A picture whose first pixel is this one of the resized picture.
  struct Placed {
    ImageView image;
    int top = 0;
    int left = 0;
  };

  Placed resized(const ImageView& image, ImageSize to, const ImageWindow& window,
                 ResizeScratch& scratch) const;
  // Rows [first, last) of the window, as bytes in the order of the output. Channel planes
  // are channel_step apart.
  void arrange_rows(const Placed& picture, const ImageWindow& window, bool flip, int first, int last,
                    ptrdiff_t channel_step, uint8_t* out) const;
  // What those bytes become, at their place in the output.
  void convert_rows(const uint8_t* tile, ImageSize size, int first, int last, void* out) const;

  ImageTransform transform_;
  PixelValues values_;
};

}  // namespace lockstep::images
