#pragma once

#include <lockstep/image_transform.h>

namespace lockstep::images {

// The part of a picture that a transform shows. Coordinates are of the picture after its
// resize; what the window shows outside of `visible` is black.
struct ImageWindow {
  int top = 0;  // of the window; may be negative
  int left = 0;
  ImageSize size = {};
  struct Rectangle {
    int top = 0;
    int left = 0;
    int bottom = 0;  // the first row below
    int right = 0;
  } visible = {};
};

// The size of a picture after the transform's resize.
ImageSize resized_size(const ImageTransform& transform, ImageSize size);

// The window of a picture of this size after its resize, before the random crop.
ImageWindow center_window(const ImageTransform& transform, ImageSize resized);

// The window of one sample. The flip is not in it.
ImageWindow sample_window(const ImageTransform& transform, ImageSize resized,
                          const Augmentation& augmentation);

}  // namespace lockstep::images
