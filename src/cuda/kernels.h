#pragma once

// The kernels of nn/kernels.h as nvcc compiles them: pointers on the device, and no LibTorch. All start work
// on the stream and wait for nothing. Images are channels last: rows of channels, one row for each pixel.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/tiles.h"

namespace lockstep::cuda {

// Random numbers of LibTorch's generator: values, or where a replayed graph finds them.
struct RandomState {
  const int64_t* seed_address;  // null: not in a graph
  const int64_t* offset_address;
  uint64_t seed;
  uint64_t offset;  // in a graph: added to the value at offset_address
};

// Blocks that take part in the sums of a channel write here; partial_sums() counts the floats, for 2 sums in
// statistics(), for 2 or 3 in gradient_sums().
struct SumMemory {
  float* partial;
  int* counters;  // kCounters zeros; zeros again after the kernel
};

// Of the batch, each [channels].
struct NormStatistics {
  float* mean;
  float* inverse_std;
  float* scale;  // the normalised value is x * scale + shift
  float* shift;
};

struct RunningStatistics {
  float* mean;  // null: not tracked
  float* variance;
  int64_t* batches;  // null: not counted
  float momentum;
};

// Dropout keeps a value if its 16 random bits are not below the threshold. They come from a hash of key and
// position, so that backward computes them again.
struct DropoutMask {
  uint64_t* key;       // on the device
  uint32_t threshold;  // 0: keeps all
  float scale;         // of what it keeps
};

void statistics(const Pixels& pixels, const void* input, const float* weight, const float* bias, float eps,
                const NormStatistics& result, const RunningStatistics& running, const DropoutMask& dropout,
                const RandomState& random, const SumMemory& memory, cudaStream_t stream);

// dropout(relu(input * scale + shift)) + shortcut + shortcut_bias. The last two may be null.
void normalize_relu(const Pixels& pixels, const void* input, const float* scale, const float* shift,
                    const DropoutMask& dropout, const void* shortcut, const float* shortcut_bias,
                    void* output, cudaStream_t stream);

// Sums over the pixels for backward, and from them the gradients of the parameters.
struct NormGradients {
  float* weight;
  float* bias;
  float* shortcut_bias;  // null: not needed
  // The gradient of the input is scale * gradient + slope * input + offset.
  float* slope;
  float* offset;
};
void gradient_sums(const Pixels& pixels, const void* gradient, const void* input, const NormStatistics& batch,
                   const DropoutMask& dropout, const NormGradients& result, const SumMemory& memory,
                   cudaStream_t stream);
void input_gradient(const Pixels& pixels, const void* gradient, const void* input,
                    const NormStatistics& batch, const DropoutMask& dropout, const float* slope,
                    const float* offset, void* result, cudaStream_t stream);

// Images for the pools: height and width are the input's.
struct Images {
  int64_t count;
  int height;
  int width;
  int channels;
  Element element;
  bool is_aligned;
};
// The largest of each 2x2 window; `place` gets which it was, 0 to 3, one byte for each value.
void max_pool(const Images& images, const void* input, void* output, uint8_t* place, cudaStream_t stream);
void max_pool_backward(const Images& images, const void* gradient, const uint8_t* place, void* result,
                       cudaStream_t stream);
// The mean of the first size x size pixels of each image.
void corner_mean(const Images& images, int size, const void* input, void* output, cudaStream_t stream);
void corner_mean_backward(const Images& images, int size, const void* gradient, void* result,
                          cudaStream_t stream);

// Rows that are normalised: `size` values each, a multiple of 8 and at most kMaxNormalized, at addresses that
// are multiples of 16 bytes. The input is float or has the type of the output.
struct Rows {
  int64_t rows;
  int size;
  Element input;
  Element output;
  int multiprocessors;
};
constexpr int kMaxNormalized = 1792;

// sum = input + branch, output = norm(sum); statistics[2 * rows]: mean and 1 / standard deviation. Without a
// branch sum is not written. The branch has the type of the output.
void layer_norm(const Rows& rows, const void* input, const void* branch, const float* weight,
                const float* bias, float eps, void* sum, void* output, float* statistics,
                cudaStream_t stream);
// The floats that layer_norm_backward() needs for its sums.
int64_t layer_norm_partial(const Rows& rows);
// `sum_gradient` may be null. branch_gradient: the gradient of the input in the type of the output; may be
// null.
void layer_norm_backward(const Rows& rows, const void* gradient, const void* sum_gradient, const void* sum,
                         const float* weight, const float* statistics, void* input_gradient,
                         void* branch_gradient, float* weight_gradient, float* bias_gradient, float* partial,
                         cudaStream_t stream);

// Rows of gradients, contiguous.
struct Matrix {
  int64_t rows;
  int columns;
  Element element;
  bool is_aligned;  // rows begin at multiples of 16 bytes
  int multiprocessors;
};
// The floats that column_sums() needs for its sums.
int64_t column_sums_partial(const Matrix& matrix);
// result[column] = the sum of the gradients over the rows. If `before` is not null, it has the arguments of
// gelu (approximated by tanh), and each gradient is first multiplied by the derivative of gelu, in place.
void column_sums(const Matrix& matrix, void* gradient, const void* before, float* partial, float* result,
                 cudaStream_t stream);

// losses[row] = the cross entropy of the row of scores; 0 where the target is `ignored`. With a gradient the
// scores become softmax minus the one of the target, or 0 in ignored rows.
void cross_entropy(int64_t rows, int classes, Element element, bool is_aligned, void* scores,
                   const int64_t* targets, int64_t ignored, float* losses, bool with_gradient,
                   cudaStream_t stream);

}  // namespace lockstep::cuda
