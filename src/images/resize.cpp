#include "images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// Compiled with -O3: the loops are meant for the vectoriser.
namespace lockstep::images {
namespace {

// Weights are multiples of 2^-22, as PIL has them: a sum of products with bytes that add up
// to one stays within 31 bits.
constexpr int kPrecision = 22;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

[[gnu::always_inline]] inline uint8_t to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::min(sum >> kPrecision, 255));
}

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// The order of the operations decides the last bit of a weight: it is PIL's.
void make_weights(ResizeWeights& out, int from, int to) {
  if (out.from == from && out.to == to) return;
  const double scale = static_cast<double>(from) / to;
  const double support = std::max(scale, 1.0);
  out = {from, to, {}, {}};
  std::vector<double> weights;
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int count = std::min(from, static_cast<int>(center + support + 0.5)) - first;
    weights.clear();
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      weights.push_back(triangle((k + first - center + 0.5) * (1.0 / support)));
      sum += weights.back();
    }
    out.taps.push_back({first, count, out.weights.size()});
    for (const double weight : weights) {
      out.weights.push_back(static_cast<int32_t>(0.5 + weight / sum * (1 << kPrecision)));
    }
  }
}

// One row of one channel.
[[gnu::always_inline]] inline void narrow_row(const ResizeWeights& columns, const uint8_t* row, int left,
                                              int right, uint8_t* out) {
  for (int x = left; x < right; ++x) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    int32_t sum = kHalf;
    for (int k = 0; k < taps.count; ++k) sum += weights[k] * row[taps.first + k];
    *out++ = to_byte(sum);
  }
}

// One row of interleaved pixels of any number of channels.
void narrow_pixels(const ResizeWeights& columns, const uint8_t* row, int channels, int left, int right,
                   uint8_t* out) {
  for (int x = left; x < right; ++x) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    for (int c = 0; c < channels; ++c) {
      int32_t sum = kHalf;
      for (int k = 0; k < taps.count; ++k) sum += weights[k] * row[(taps.first + k) * channels + c];
      *out++ = to_byte(sum);
    }
  }
}

using Bytes4 = uint8_t __attribute__((vector_size(4)));
using Sums4 = int32_t __attribute__((vector_size(16)));

// Three channels: a pixel is a vector, of which the fourth element is nobody's.
[[gnu::always_inline]] inline void narrow_rgb(const ResizeWeights& columns, const uint8_t* row, int width,
                                              int left, int right, uint8_t* spread, uint8_t* out) {
  for (int x = 0; x + 1 < width; ++x) std::memcpy(spread + 4 * x, row + 3 * x, 4);
  std::memcpy(spread + 4 * (width - 1), row + 3 * (width - 1), 3);
  for (int x = left; x < right; ++x) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    const uint8_t* pixel = spread + static_cast<ptrdiff_t>(4) * taps.first;
    Sums4 sums = {kHalf, kHalf, kHalf, kHalf};
    for (int k = 0; k < taps.count; ++k, pixel += 4) {
      Bytes4 bytes;
      std::memcpy(&bytes, pixel, 4);
      sums += __builtin_convertvector(bytes, Sums4) * weights[k];
    }
    for (int c = 0; c < 3; ++c) *out++ = to_byte(sums[c]);
  }
}

// Adds up `taps.count` rows of `count` bytes that are `step` apart.
[[gnu::always_inline]] inline void blend_rows(const int32_t* weights, int taps, const uint8_t* rows,
                                              ptrdiff_t step, int count, uint8_t* out) {
  constexpr int kBlock = 32;
  const auto blend = [&](int from, int elements) __attribute__((always_inline)) {
    int32_t sums[kBlock];
    for (int i = 0; i < elements; ++i) sums[i] = kHalf;
    for (int k = 0; k < taps; ++k) {
      const uint8_t* row = rows + k * step + from;
      for (int i = 0; i < elements; ++i) sums[i] += weights[k] * row[i];
    }
    for (int i = 0; i < elements; ++i) out[from + i] = to_byte(sums[i]);
  };
  if (count < kBlock) return blend(0, count);
  // The last block begins where it still fits, and computes some elements again.
  for (int i = 0; i < count; i += kBlock) blend(std::min(i, count - kBlock), kBlock);
}

// Both passes over one plane: `channels` interleaved, or one of several planes.
struct Plane {
  const uint8_t* pixels;
  int channels;
  int width;
  ImageWindow::Rectangle part;
  uint8_t* narrowed;
  uint8_t* out;
};

[[gnu::always_inline]] inline void resize_plane(const Plane& plane, ResizeScratch& scratch) {
  const ImageWindow::Rectangle& part = plane.part;
  const ResizeWeights::Taps& first = scratch.rows.taps[static_cast<size_t>(part.top)];
  const ResizeWeights::Taps& last = scratch.rows.taps[static_cast<size_t>(part.bottom - 1)];
  const int row_bytes = (part.right - part.left) * plane.channels;
  for (int y = first.first; y < last.first + last.count; ++y) {
    const uint8_t* row = plane.pixels + static_cast<ptrdiff_t>(y) * plane.width * plane.channels;
    uint8_t* out = plane.narrowed + static_cast<ptrdiff_t>(y - first.first) * row_bytes;
    if (plane.channels == 1) {
      narrow_row(scratch.columns, row, part.left, part.right, out);
    } else if (plane.channels == 3) {
      narrow_rgb(scratch.columns, row, plane.width, part.left, part.right, scratch.spread.data(), out);
    } else {
      narrow_pixels(scratch.columns, row, plane.channels, part.left, part.right, out);
    }
  }
  for (int y = part.top; y < part.bottom; ++y) {
    const ResizeWeights::Taps& taps = scratch.rows.taps[static_cast<size_t>(y)];
    const uint8_t* rows = plane.narrowed + static_cast<ptrdiff_t>(taps.first - first.first) * row_bytes;
    uint8_t* out = plane.out + static_cast<ptrdiff_t>(y - part.top) * row_bytes;
    blend_rows(&scratch.rows.weights[taps.weights], taps.count, rows, row_bytes, row_bytes, out);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void resize_wide(const Plane& plane, ResizeScratch& scratch) {
  resize_plane(plane, scratch);
}

void resize_here(const Plane& plane, ResizeScratch& scratch) {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  wide ? resize_wide(plane, scratch) : resize_plane(plane, scratch);
}
#else
void resize_here(const Plane& plane, ResizeScratch& scratch) { resize_plane(plane, scratch); }
#endif

}  // namespace

ImageView resize_part(const ImageView& image, ImageSize to, const ImageWindow::Rectangle& part,
                      ResizeScratch& scratch) {
  make_weights(scratch.columns, image.width, to.width);
  make_weights(scratch.rows, image.height, to.height);
  const int planes = image.layout == ImageView::Layout::kPlanar ? image.channels : 1;
  const int channels = image.channels / planes;
  const int width = part.right - part.left;
  const int height = part.bottom - part.top;
  const size_t plane_bytes = static_cast<size_t>(height) * static_cast<size_t>(width * channels);
  scratch.spread.resize(static_cast<size_t>(image.width) * 4);
  scratch.narrowed.resize(static_cast<size_t>(image.height) * static_cast<size_t>(width * channels));
  scratch.resized.resize(plane_bytes * static_cast<size_t>(planes));
  for (int plane = 0; plane < planes; ++plane) {
    const ptrdiff_t offset = static_cast<ptrdiff_t>(plane) * image.height * image.width;
    resize_here({image.pixels + offset, channels, image.width, part, scratch.narrowed.data(),
                 scratch.resized.data() + static_cast<size_t>(plane) * plane_bytes},
                scratch);
  }
  return {scratch.resized.data(), image.channels, height, width, image.layout};
}

}  // namespace lockstep::images
