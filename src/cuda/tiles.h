#pragma once

// How batch norm divides its pixels among the blocks of a launch. No CUDA, so that tests of the host can
// check it.

#include <algorithm>
#include <cstdint>

namespace lockstep::cuda {

enum class Element { kFloat, kHalf, kBFloat16 };

// A matrix of pixels by channels.
struct Pixels {
  int64_t rows;
  int channels;
  Element element;
  bool is_aligned;  // rows begin at multiples of 16 bytes
  int multiprocessors;
};

// The values that a thread loads at once: 16 bytes if channels and addresses allow it, else one value.
inline int vector_width(Element element, int channels, bool is_aligned) {
  const int full = element == Element::kFloat ? 4 : 8;
  return is_aligned && channels % full == 0 ? full : 1;
}

constexpr int kThreadsOfNorm = 256;    // of a block
constexpr int kMaxColumns = 16;        // vectors of a row that a block handles
constexpr int kUnroll = 4;             // rows in flight of a thread
constexpr int kMaxResidentBlocks = 8;  // of a multiprocessor, which has 2048 threads
constexpr int kCounters = 4096;        // one for each group of columns

struct Tiles {
  int groups;  // of columns
  int chunks;  // of rows; each group has that many blocks
  int columns;
  int rows;
};

inline int columns_of(int vectors) {
  // A divisor leaves no thread idle.
  for (int columns = std::min(vectors, kMaxColumns); columns >= 8; --columns) {
    if (vectors % columns == 0) return columns;
  }
  return std::min(vectors, kMaxColumns);
}

// REQUIRES: blocks_per_multiprocessor is at most kMaxResidentBlocks.
inline Tiles tiles_of(const Pixels& pixels, int blocks_per_multiprocessor) {
  const int vectors = pixels.channels / vector_width(pixels.element, pixels.channels, pixels.is_aligned);
  const int columns = columns_of(vectors);
  const int rows = kThreadsOfNorm / columns;
  const int groups = (vectors + columns - 1) / columns;
  const int64_t row_tiles = (pixels.rows + rows * kUnroll - 1) / (rows * kUnroll);
  const int64_t most = std::max(1, blocks_per_multiprocessor * pixels.multiprocessors / groups);
  const auto chunks = static_cast<int>(std::clamp<int64_t>(row_tiles, 1, most));
  return {.groups = groups, .chunks = chunks, .columns = columns, .rows = rows};
}

// The floats that blocks need to hand over `sums` sums of each channel: enough for any number of resident
// blocks, because the tiles are those of the launch.
inline int64_t partial_sums(const Pixels& pixels, int sums) {
  return int64_t{tiles_of(pixels, kMaxResidentBlocks).chunks} * sums * pixels.channels;
}

}  // namespace lockstep::cuda
