#include "images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compiled with -O3: the compiler vectorises the loops for any machine. The vector extensions of the
// compilers do the shuffles.
namespace lockstep::images {
namespace {

// Rows that are resized side by side, column by column.
constexpr int kLanes = 8;

constexpr int kPrecision = ResizeWeights::kPrecision;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::min(sum >> kPrecision, 255)); }

void columns_anywhere(const ResizeWeights& columns, int first, int left, int right, const uint8_t* lanes,
                      uint8_t* out) {
  for (int x = left; x < right; ++x, out += kLanes) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    const uint8_t* in = lanes + static_cast<ptrdiff_t>(kLanes) * (taps.first - first);
    int32_t sums[kLanes];
    for (int32_t& sum : sums) sum = kHalf;
    for (int k = 0; k < taps.count; ++k, in += kLanes) {
      for (int i = 0; i < kLanes; ++i) sums[i] += weights[k] * in[i];
    }
    for (int i = 0; i < kLanes; ++i) out[i] = to_byte(sums[i]);
  }
}

// Elements [from, to) of a row.
void row_anywhere(const int32_t* weights, int taps, const uint8_t* in, int step, int from, int to,
                  uint8_t* out) {
  for (int i = from; i < to; ++i) {
    int32_t sum = kHalf;
    for (int k = 0; k < taps; ++k) sum += weights[k] * in[static_cast<ptrdiff_t>(k) * step + i];
    out[i] = to_byte(sum);
  }
}

#if defined(__x86_64__)

// The bytes of a row that are summed at a time.
constexpr int kBlock = 4 * kLanes;

__attribute__((target("avx2"), always_inline)) inline __m256i weighted(const uint8_t* bytes, int32_t weight) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(packed), _mm256_set1_epi32(weight));
}

__attribute__((target("avx2"), always_inline)) inline void store(__m256i sums, uint8_t* out) {
  const __m256i shifted = _mm256_srli_epi32(sums, kPrecision);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

__attribute__((target("avx2"))) void columns_wide(const ResizeWeights& columns, int first, int left,
                                                  int right, const uint8_t* lanes, uint8_t* out) {
  for (int x = left; x < right; ++x, out += kLanes) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    const uint8_t* in = lanes + static_cast<ptrdiff_t>(kLanes) * (taps.first - first);
    __m256i sums = _mm256_set1_epi32(kHalf);
    for (int k = 0; k < taps.count; ++k) sums = _mm256_add_epi32(sums, weighted(in + kLanes * k, weights[k]));
    store(sums, out);
  }
}

__attribute__((target("avx2"))) void row_wide(const int32_t* weights, int taps, const uint8_t* in, int step,
                                              int count, uint8_t* out) {
  for (int i = 0; i < count; i += kBlock) {
    // The last block overlaps the one before, so that it ends with the row.
    const int place = std::min(i, count - kBlock);
    const uint8_t* row = in + place;
    __m256i a = _mm256_set1_epi32(kHalf);
    __m256i b = a;
    __m256i c = a;
    __m256i d = a;
    for (int k = 0; k < taps; ++k, row += step) {
      a = _mm256_add_epi32(a, weighted(row, weights[k]));
      b = _mm256_add_epi32(b, weighted(row + kLanes, weights[k]));
      c = _mm256_add_epi32(c, weighted(row + 2 * kLanes, weights[k]));
      d = _mm256_add_epi32(d, weighted(row + 3 * kLanes, weights[k]));
    }
    store(a, out + place);
    store(b, out + place + kLanes);
    store(c, out + place + 2 * kLanes);
    store(d, out + place + 3 * kLanes);
  }
}

bool is_wide() {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  return wide;
}

#endif

// The horizontal pass: columns [left, right) of the output, from lanes that begin with input column
// `first`.
void resize_columns(const ResizeWeights& columns, int first, int left, int right, const uint8_t* lanes,
                    uint8_t* out) {
#if defined(__x86_64__)
  if (is_wide()) return columns_wide(columns, first, left, right, lanes, out);
#endif
  columns_anywhere(columns, first, left, right, lanes, out);
}

// The vertical pass: row y of the output, `count` bytes, from rows that are `count` bytes apart and
// begin with input row `first`.
void resize_row(const ResizeWeights& rows, int first, int y, int count, const uint8_t* in, uint8_t* out) {
  const ResizeWeights::Taps& taps = rows.taps[static_cast<size_t>(y)];
  const int32_t* weights = &rows.weights[taps.weights];
  in += static_cast<ptrdiff_t>(taps.first - first) * count;
#if defined(__x86_64__)
  if (is_wide() && count >= kBlock) return row_wide(weights, taps.count, in, count, count, out);
#endif
  row_anywhere(weights, taps.count, in, count, 0, count, out);
}

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// PIL's rounding: adds one half and truncates.
int rounded(double x) {
  const double above = x + 0.5;
  return static_cast<int>(above);
}

// The order of the operations is PIL's: it decides the last bit of a weight.
void make_weights(ResizeWeights& out, int from, int to) {
  if (out.from == from && out.to == to) return;
  const double scale = static_cast<double>(from) / to;
  const double support = std::max(scale, 1.0);
  out = {from, to, {}, {}};
  std::vector<double> weights;
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, rounded(center - support));
    const int count = std::min(from, rounded(center + support)) - first;
    weights.clear();
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      weights.push_back(triangle((k + first - center + 0.5) * (1.0 / support)));
      sum += weights.back();
    }
    out.taps.push_back({first, count, out.weights.size()});
    for (const double weight : weights) {
      out.weights.push_back(rounded(weight / sum * (1 << ResizeWeights::kPrecision)));
    }
  }
}

// Sixteen columns of eight rows, row by row or column by column.
struct Square {
  uint8_t __attribute__((vector_size(16))) part[kLanes];
};

// Interleaves pairs of vectors three times: rows become columns.
Square to_columns(Square s) {
  for (int round = 0; round < 3; ++round) {
    Square next;
    for (int i = 0; i < kLanes / 2; ++i) {
      const auto a = s.part[i];
      const auto b = s.part[i + kLanes / 2];
      next.part[2 * i] =
          __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next.part[2 * i + 1] =
          __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    s = next;
  }
  return s;
}

Square to_rows(Square s) {
  for (int round = 0; round < 3; ++round) {
    Square next;
    for (int i = 0; i < kLanes / 2; ++i) {
      const auto a = s.part[2 * i];
      const auto b = s.part[2 * i + 1];
      next.part[i] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      next.part[i + kLanes / 2] =
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    }
    s = next;
  }
  return s;
}

// Several rows side by side, so that the weight of a column applies to all lanes: eight rows of one
// channel, or two rows of three channels and an unused lane each.
struct Bundle {
  const uint8_t* rows[kLanes];  // at the first column to read
  int count;                    // of rows; further ones repeat the last
  int channels;
  ptrdiff_t pixel_step;
};

void gather(const Bundle& bundle, int columns, uint8_t* lanes) {
  if (bundle.channels == 3) {
    for (int r = 0; r < 2; ++r) {
      const uint8_t* row = bundle.rows[r];
      uint8_t* out = lanes + 4 * r;
      for (int x = 0; x + 1 < columns; ++x) std::memcpy(out + kLanes * x, row + 3 * x, 4);
      std::memcpy(out + kLanes * (columns - 1), row + 3 * (columns - 1), 3);
    }
    return;
  }
  int x = 0;
  for (; bundle.pixel_step == 1 && x + 16 <= columns; x += 16) {
    Square square;
    for (int r = 0; r < kLanes; ++r) std::memcpy(&square.part[r], bundle.rows[r] + x, 16);
    square = to_columns(square);
    std::memcpy(lanes + kLanes * x, &square, sizeof(square));
  }
  for (; x < columns; ++x) {
    for (int r = 0; r < kLanes; ++r) lanes[kLanes * x + r] = bundle.rows[r][x * bundle.pixel_step];
  }
}

// Back into rows that are row_bytes apart.
void scatter(const uint8_t* lanes, const Bundle& bundle, int columns, ptrdiff_t row_bytes, uint8_t* out) {
  if (bundle.channels == 3) {
    for (int r = 0; r < bundle.count; ++r) {
      uint8_t* row = out + r * row_bytes;
      const uint8_t* in = lanes + 4 * r;
      // The fourth byte is overwritten by the next pixel.
      for (int x = 0; x + 1 < columns; ++x) std::memcpy(row + 3 * x, in + kLanes * x, 4);
      std::memcpy(row + 3 * (columns - 1), in + kLanes * (columns - 1), 3);
    }
    return;
  }
  int x = 0;
  for (; x + 16 <= columns; x += 16) {
    Square square;
    std::memcpy(&square, lanes + kLanes * x, sizeof(square));
    square = to_rows(square);
    for (int r = 0; r < bundle.count; ++r) std::memcpy(out + r * row_bytes + x, &square.part[r], 16);
  }
  for (; x < columns; ++x) {
    for (int r = 0; r < bundle.count; ++r) out[r * row_bytes + x] = lanes[kLanes * x + r];
  }
}

// The pixels of one channel, or of three interleaved channels, for both passes.
struct Plane {
  const uint8_t* pixels;
  int channels;
  ptrdiff_t pixel_step;
  ptrdiff_t row_step;
  ImageWindow::Rectangle part;
  uint8_t* out;
};

void resize_plane(const Plane& plane, ResizeScratch& scratch) {
  const ImageWindow::Rectangle& part = plane.part;
  const auto at = [](const ResizeWeights& weights, int i) { return weights.taps[static_cast<size_t>(i)]; };
  const int top = at(scratch.rows, part.top).first;
  const int bottom = at(scratch.rows, part.bottom - 1).first + at(scratch.rows, part.bottom - 1).count;
  const int left = at(scratch.columns, part.left).first;
  const int right = at(scratch.columns, part.right - 1).first + at(scratch.columns, part.right - 1).count;
  const int columns = part.right - part.left;
  const int row_bytes = columns * plane.channels;
  const int rows_a_bundle = plane.channels == 3 ? 2 : kLanes;
  for (int y = top; y < bottom; y += rows_a_bundle) {
    Bundle bundle{{}, std::min(rows_a_bundle, bottom - y), plane.channels, plane.pixel_step};
    for (int r = 0; r < kLanes; ++r) {
      const int row = y + std::min(r, bundle.count - 1);
      bundle.rows[r] = plane.pixels + row * plane.row_step + left * plane.pixel_step;
    }
    gather(bundle, right - left, scratch.lanes.data());
    resize_columns(scratch.columns, left, part.left, part.right, scratch.lanes.data(),
                   scratch.narrow_lanes.data());
    scatter(scratch.narrow_lanes.data(), bundle, columns, row_bytes,
            scratch.narrowed.data() + static_cast<ptrdiff_t>(y - top) * row_bytes);
  }
  for (int y = part.top; y < part.bottom; ++y) {
    resize_row(scratch.rows, top, y, row_bytes, scratch.narrowed.data(),
               plane.out + static_cast<ptrdiff_t>(y - part.top) * row_bytes);
  }
}

}  // namespace

ImageView resize_part(const ImageView& image, ImageSize to, const ImageWindow::Rectangle& part,
                      ResizeScratch& scratch) {
  make_weights(scratch.columns, image.width, to.width);
  make_weights(scratch.rows, image.height, to.height);
  const bool interleaved = image.layout == ImageView::Layout::kInterleaved;
  const int channels = interleaved && image.channels == 3 ? 3 : 1;  // of a plane
  const int planes = image.channels / channels;
  const int width = part.right - part.left;
  const int height = part.bottom - part.top;
  const size_t plane_bytes = static_cast<size_t>(height) * static_cast<size_t>(width * channels);
  scratch.lanes.resize(static_cast<size_t>(image.width) * kLanes);
  scratch.narrow_lanes.resize(static_cast<size_t>(width) * kLanes);
  scratch.narrowed.resize(static_cast<size_t>(image.height) * static_cast<size_t>(width * channels));
  scratch.resized.resize(plane_bytes * static_cast<size_t>(planes));
  const ptrdiff_t pixel_step = interleaved ? image.channels : 1;
  const ptrdiff_t plane_step = interleaved ? 1 : static_cast<ptrdiff_t>(image.height) * image.width;
  for (int i = 0; i < planes; ++i) {
    resize_plane({image.pixels + i * plane_step, channels, pixel_step, pixel_step * image.width, part,
                  scratch.resized.data() + static_cast<size_t>(i) * plane_bytes},
                 scratch);
  }
  const auto layout = channels == 3 ? ImageView::Layout::kInterleaved : ImageView::Layout::kPlanar;
  return {scratch.resized.data(), image.channels, height, width, layout};
}

}  // namespace lockstep::images
