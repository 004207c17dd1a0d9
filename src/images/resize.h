#pragma once

#include <lockstep/image_source.h>
#include <lockstep/image_transform.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "images/image_window.h"

namespace lockstep::images {

// What the output pixels of one direction are made of.
struct ResizeWeights {
  // `count` input pixels from `first` on; their weights begin at `weights`.
  struct Taps {
    int first = 0;
    int count = 0;
    size_t weights = 0;
  };

  int from = 0;  // pixels of the input, and of the output
  int to = 0;
  std::vector<Taps> taps;
  std::vector<int32_t> weights;
};

// A thread's memory for resize_part(): grows to what the largest picture needs, and keeps
// the weights for the next picture of the same size.
struct ResizeScratch {
  ResizeWeights columns;
  ResizeWeights rows;
  std::vector<uint8_t> spread;    // a row with four bytes a pixel
  std::vector<uint8_t> narrowed;  // after the horizontal pass
  std::vector<uint8_t> resized;
};

// A part of the picture resized to `to`, in the picture's layout: PIL's bilinear filter,
// bit for bit. Only what the part needs is computed. The part is not empty; the view refers
// to the scratch.
ImageView resize_part(const ImageView& image, ImageSize to, const ImageWindow::Rectangle& part,
                      ResizeScratch& scratch);

}  // namespace lockstep::images
