#pragma once

#include <lockstep/image_source.h>
#include <lockstep/image_transform.h>

#include <cstdint>
#include <vector>

#include "images/image_window.h"
#include "images/resize_kernels.h"

namespace lockstep::images {

// A thread's memory for resize_part(): grows to what the largest picture needs, and keeps
// the weights for the next picture of the same size.
struct ResizeScratch {
  ResizeWeights columns;
  ResizeWeights rows;
  std::vector<uint8_t> lanes;         // some rows, column by column
  std::vector<uint8_t> narrow_lanes;  // the same after the horizontal pass
  std::vector<uint8_t> narrowed;      // all rows after it
  std::vector<uint8_t> resized;
};

// A part of the picture resized to `to`: PIL's bilinear filter, bit for bit. Only what the
// part needs is computed. The part is not empty; the view refers to the scratch, and its
// layout may be another than the picture's.
ImageView resize_part(const ImageView& image, ImageSize to, const ImageWindow::Rectangle& part,
                      ResizeScratch& scratch);

}  // namespace lockstep::images
