#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::images {

// What the output pixels of one direction are made of.
struct ResizeWeights {
  // `count` input pixels from `first` on; their weights begin at `weights`.
  struct Taps {
    int first = 0;
    int count = 0;
    size_t weights = 0;
  };

  // Weights are multiples of 2^-22, as PIL has them: a sum of products with bytes, where
  // the weights add up to one, stays within 31 bits.
  static constexpr int kPrecision = 22;

  int from = 0;  // pixels of the input, and of the output
  int to = 0;
  std::vector<Taps> taps;
  std::vector<int32_t> weights;
};

// Rows that are resized side by side, column by column.
constexpr int kLanes = 8;

// The horizontal pass: columns [left, right) of the output, from lanes that begin with
// input column `first`.
void resize_columns(const ResizeWeights& columns, int first, int left, int right, const uint8_t* lanes,
                    uint8_t* out);

// The vertical pass: row y of the output, `count` bytes, from rows that are `count` bytes
// apart and begin with input row `first`.
void resize_row(const ResizeWeights& rows, int first, int y, int count, const uint8_t* in, uint8_t* out);

}  // namespace lockstep::images
