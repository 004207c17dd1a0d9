#pragma once

#include <lockstep/image_files.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "images/image_transform.h"

namespace lockstep::images {

// The weights of the input pixels for each output pixel, in one direction.
struct ResizeWeights {
  // `count` input pixels from `first` on; their weights begin at index `weights`.
  struct Taps {
    int first = 0;
    int count = 0;
    size_t weights = 0;
  };

  // Weights are multiples of 2^-22, as in PIL: the weights add up to one, so that a weighted sum of
  // bytes fits into 31 bits.
  static constexpr int kPrecision = 22;

  int from = 0;  // pixels of the input
  int to = 0;    // pixels of the output
  std::vector<Taps> taps;
  std::vector<int32_t> weights;
};

// The memory of one thread for resize_part(). It grows to the largest picture, and keeps the
// weights for the next picture of the same size.
struct ResizeScratch {
  ResizeWeights columns;
  ResizeWeights rows;
  std::vector<uint8_t> lanes;         // some rows, column by column
  std::vector<uint8_t> narrow_lanes;  // the same after the horizontal pass
  std::vector<uint8_t> narrowed;      // all rows after the horizontal pass
  std::vector<uint8_t> resized;
};

// Resizes a picture to `to` and returns a part of the result, which must not be empty; only that
// part is computed. Bit-identical to PIL's bilinear filter. The view refers to the scratch, and its
// layout may differ from the picture's.
ImageView resize_part(const ImageView& image, ImageSize to, const ImageWindow::Rectangle& part,
                      ResizeScratch& scratch);

}  // namespace lockstep::images
