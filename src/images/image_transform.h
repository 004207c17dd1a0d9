#pragma once

#include <lockstep/image_files.h>

namespace lockstep::images {

// The part of a picture that a transform shows, in coordinates of the resized picture. Pixels of
// the window outside of `visible` are black.
struct ImageWindow {
  int top = 0;  // of the window; may be negative
  int left = 0;
  ImageSize size = {};
  struct Rectangle {
    int top = 0;
    int left = 0;
    int bottom = 0;  // the first row below
    int right = 0;   // the first column to the right
  } visible = {};
};

// The size of a picture after the transform's resize.
ImageSize resized_size(const ImageTransform& transform, ImageSize size);

// The window after the center crop and before the random crop, of a picture with this size after
// its resize.
ImageWindow center_window(const ImageTransform& transform, ImageSize resized);

// The window of one sample. The flip is not part of it.
ImageWindow sample_window(const ImageTransform& transform, ImageSize resized,
                          const Augmentation& augmentation);

}  // namespace lockstep::images
