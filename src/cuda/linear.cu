// What the backward of linear layers does beside matrix products: the gradient of gelu, and the sum over the
// rows, which is the gradient of a bias. A thread has some columns of some rows.

#include <algorithm>

#include "cuda/dispatch.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a block; each has other rows of the same columns

// The derivative of x (1 + tanh(beta (x + kappa x^3))) / 2.
__device__ float gelu_derivative(float x) {
  constexpr float kBeta = 0.7978845608028654F;  // sqrt(2 / pi)
  constexpr float kKappa = 0.044715F;
  const float square = x * x;
  const float inner = kBeta * x * fmaf(kKappa, square, 1);
  const float tanh = 1 - 2 / (1 + __expf(2 * inner));
  const float of_inner = kBeta * fmaf(3 * kKappa, square, 1);
  return 0.5F * (1 + tanh) + 0.5F * x * (1 - tanh * tanh) * of_inner;
}

// partial[blockIdx.y][column] = the sum of the block's rows. With kHasGelu each gradient is first multiplied
// by the derivative of gelu, in place.
template <typename T, int kWidth, bool kHasGelu>
__global__ void __launch_bounds__(kWarp* kWarps)
    column_sums_kernel(int64_t rows, int columns, T* gradient, const T* before, float* partial) {
  const int column = (static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x)) * kWidth;
  float sums[kWidth] = {};
  if (column < columns) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kWarps;
#pragma unroll 4
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.y; row < rows; row += step) {
      const Vector<T, kWidth> values = load<kWidth>(gradient + row * columns + column);
      float own[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) own[i] = as_float(values.values[i]);
      if constexpr (kHasGelu) {
        const Vector<T, kWidth> x = load<kWidth>(before + row * columns + column);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) own[i] *= gelu_derivative(as_float(x.values[i]));
        store(gradient + row * columns + column, own);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += own[i];
    }
  }
  __shared__ float shared[kWarps][kWarp * kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[threadIdx.y][threadIdx.x * kWidth + i] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y) * kWarp + static_cast<int>(threadIdx.x); i < kWarp * kWidth;
       i += kWarp * kWarps) {
    const int own = static_cast<int>(blockIdx.x) * kWarp * kWidth + i;
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += shared[warp][i];
    if (own < columns) partial[static_cast<int64_t>(blockIdx.y) * columns + own] = total;
  }
}

// result[column] = the sum of partial[block][column] over the blocks.
__global__ void __launch_bounds__(kWarp* kWarps)
    add_blocks_kernel(int blocks, int columns, const float* partial, float* result) {
  const int column = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x);
  float total = 0;
  if (column < columns) {
    for (int block = static_cast<int>(threadIdx.y); block < blocks; block += kWarps) {
      total += partial[static_cast<int64_t>(block) * columns + column];
    }
  }
  __shared__ float shared[kWarps][kWarp];
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) total += shared[warp][threadIdx.x];
  result[column] = total;
}

// Each thread sums about 32 rows, or more if that fills the multiprocessors.
int row_blocks(const Matrix& matrix) {
  constexpr int kBlocksAtOnce = 8;  // of a multiprocessor
  const int64_t strips = (matrix.columns + kWarp * 8 - 1) / (kWarp * 8);
  const int64_t wanted = (matrix.rows + kWarps * 32 - 1) / (kWarps * 32);
  const int64_t most = std::max<int64_t>(1, int64_t{2} * kBlocksAtOnce * matrix.multiprocessors / strips);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, most));
}

}  // namespace

int64_t column_sums_partial(const Matrix& matrix) { return int64_t{row_blocks(matrix)} * matrix.columns; }

void column_sums(const Matrix& matrix, void* gradient, const void* before, float* partial, float* result,
                 cudaStream_t stream) {
  const int blocks = row_blocks(matrix);
  dispatch(matrix.element, matrix.columns, matrix.is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    constexpr int kWidth = decltype(kind)::kWidth;
    const dim3 grid(static_cast<unsigned>((matrix.columns + kWarp * kWidth - 1) / (kWarp * kWidth)),
                    static_cast<unsigned>(blocks));
    dispatch(before != nullptr, [&](auto has_gelu) {
      column_sums_kernel<T, kWidth, has_gelu.value><<<grid, dim3(kWarp, kWarps), 0, stream>>>(
          matrix.rows, matrix.columns, static_cast<T*>(gradient), static_cast<const T*>(before), partial);
    });
  });
  add_blocks_kernel<<<(matrix.columns + kWarp - 1) / kWarp, dim3(kWarp, kWarps), 0, stream>>>(
      blocks, matrix.columns, partial, result);
}

}  // namespace lockstep::cuda
