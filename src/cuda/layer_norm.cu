// Layer norm over the last dimension, with the sum of a residual connection before it. A warp has a row in
// its registers, so every value is read once.

#include <algorithm>

#include "cuda/dispatch.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;  // of a block
constexpr int kWidth = 8;  // values that a lane loads at once
// Blocks of a multiprocessor in backward. More would not run at once, but wait for others to end.
constexpr int kBackwardBlocks = 4;

__device__ float sum_over_warp(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

// The vectors of a row that a lane has: kVectors, or fewer in a narrow row.
template <int kVectors, typename Body>
__device__ void for_vectors(int size, const Body& body) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kWarp + static_cast<int>(threadIdx.x)) * kWidth;
    if (column < size) body(v, column);
  }
}

template <typename X, typename Y, int kVectors, bool kHasBranch>
__global__ void __launch_bounds__(kWarp* kWarps)
    layer_norm_kernel(int64_t rows, int size, const X* input, const Y* branch, const float* weight,
                      const float* bias, float eps, X* sum, Y* output, float* statistics) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < rows; row += step) {
    float values[kVectors][kWidth] = {};
    float total = 0;
    for_vectors<kVectors>(size, [&](int v, int column) {
      const Vector<X, kWidth> x = load<kWidth>(input + row * size + column);
      if constexpr (kHasBranch) {
        const Vector<Y, kWidth> other = load<kWidth>(branch + row * size + column);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          // Rounded as the stored sum, which backward reads.
          values[v][i] = as_float(rounded<X>(as_float(x.values[i]) + as_float(other.values[i])));
        }
        store(sum + row * size + column, values[v]);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[v][i] = as_float(x.values[i]);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) total += values[v][i];
    });
    const float mean = sum_over_warp(total) / static_cast<float>(size);
    float squares = 0;
    for_vectors<kVectors>(size, [&](int v, int) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float difference = values[v][i] - mean;
        squares = fmaf(difference, difference, squares);
      }
    });
    const float inverse_std = rsqrtf(sum_over_warp(squares) / static_cast<float>(size) + eps);
    for_vectors<kVectors>(size, [&](int v, int column) {
      float weights[kWidth], biases[kWidth];
      load_floats(weight + column, weights);
      load_floats(bias + column, biases);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        values[v][i] = fmaf((values[v][i] - mean) * inverse_std, weights[i], biases[i]);
      }
      store(output + row * size + column, values[v]);
    });
    if (threadIdx.x == 0) {
      statistics[2 * row] = mean;
      statistics[2 * row + 1] = inverse_std;
    }
  }
}

// Each block writes its sums for weight and bias to partial[block][2][size].
template <typename X, typename Y, int kVectors>
__global__ void __launch_bounds__(kWarp* kWarps, kVectors <= 3 ? kBackwardBlocks : 1)
    layer_norm_backward_kernel(int64_t rows, int size, const Y* gradient, const X* sum_gradient, const X* sum,
                               const float* weight, const float* statistics, X* input_gradient,
                               Y* branch_gradient, float* partial) {
  float weight_sums[kVectors][kWidth] = {}, bias_sums[kVectors][kWidth] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < rows; row += step) {
    const float mean = statistics[2 * row], inverse_std = statistics[2 * row + 1];
    float normalized[kVectors][kWidth] = {}, scaled[kVectors][kWidth] = {};
    float total = 0, product = 0;
    for_vectors<kVectors>(size, [&](int v, int column) {
      const Vector<X, kWidth> x = load<kWidth>(sum + row * size + column);
      const Vector<Y, kWidth> dy = load<kWidth>(gradient + row * size + column);
      float weights[kWidth];
      load_floats(weight + column, weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = as_float(dy.values[i]);
        normalized[v][i] = (as_float(x.values[i]) - mean) * inverse_std;
        bias_sums[v][i] += g;
        weight_sums[v][i] = fmaf(g, normalized[v][i], weight_sums[v][i]);
        scaled[v][i] = g * weights[i];
        total += scaled[v][i];
        product = fmaf(scaled[v][i], normalized[v][i], product);
      }
    });
    total = sum_over_warp(total) / static_cast<float>(size);
    product = sum_over_warp(product) / static_cast<float>(size);
    for_vectors<kVectors>(size, [&](int v, int column) {
      float result[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        result[i] = (scaled[v][i] - total - normalized[v][i] * product) * inverse_std;
      }
      if (sum_gradient != nullptr) {
        const Vector<X, kWidth> other = load<kWidth>(sum_gradient + row * size + column);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) result[i] += as_float(other.values[i]);
      }
      store(input_gradient + row * size + column, result);
      if (branch_gradient != nullptr) store(branch_gradient + row * size + column, result);
    });
  }
  __shared__ float shared[kWarps][kVectors * kWidth * kWarp];
  float* const block_sums = partial + static_cast<int64_t>(blockIdx.x) * 2 * size;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    __syncthreads();
    for_vectors<kVectors>(size, [&](int v, int column) {
      store_floats(&shared[threadIdx.y][column], which == 0 ? weight_sums[v] : bias_sums[v]);
    });
    __syncthreads();
    for (int column = threadIdx.y * kWarp + threadIdx.x; column < size; column += kWarp * kWarps) {
      float total = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) total += shared[warp][column];
      block_sums[which * size + column] = total;
    }
  }
}

constexpr int kSumRows = 32;

// result[column] = the sum of partial[block][column] over the blocks; columns of weight, then of bias.
__global__ void __launch_bounds__(kWarp* kSumRows)
    add_partial_kernel(int blocks, int size, const float* partial, float* weight_gradient,
                       float* bias_gradient) {
  __shared__ float shared[kSumRows][kWarp + 1];
  const int column = blockIdx.x * kWarp + threadIdx.x;
  float total = 0;
  if (column < 2 * size) {
#pragma unroll 4
    for (int block = threadIdx.y; block < blocks; block += kSumRows) {
      total += partial[static_cast<int64_t>(block) * 2 * size + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  // A row of threads becomes a warp that adds one column.
  total = sum_over_warp(shared[threadIdx.x][threadIdx.y]);
  const int own = blockIdx.x * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && own < 2 * size)
    (own < size ? weight_gradient[own] : bias_gradient[own - size]) = total;
}

// Calls run(X(), Y(), vectors of a lane).
template <typename Run>
void dispatch_rows(const Rows& rows, const Run& run) {
  const auto with_vectors = [&](auto x, auto y) {
    if (rows.size <= 3 * kWidth * kWarp) {
      run(x, y, std::integral_constant<int, 3>());
    } else {
      run(x, y, std::integral_constant<int, kMaxNormalized / (kWidth * kWarp)>());
    }
  };
  if (rows.input == rows.output) {
    switch (rows.input) {
      case Element::kFloat: return with_vectors(float(), float());
      case Element::kHalf: return with_vectors(__half(), __half());
      case Element::kBFloat16: return with_vectors(__nv_bfloat16(), __nv_bfloat16());
    }
  } else if (rows.output == Element::kHalf) {
    with_vectors(float(), __half());
  } else {
    with_vectors(float(), __nv_bfloat16());
  }
}

int blocks_of(const Rows& rows, int for_each_multiprocessor) {
  const int64_t wanted = (rows.rows + kWarps - 1) / kWarps;
  return static_cast<int>(std::min<int64_t>(wanted, int64_t{for_each_multiprocessor} * rows.multiprocessors));
}

}  // namespace

int64_t layer_norm_partial(const Rows& rows) {
  return int64_t{2} * rows.size * blocks_of(rows, kBackwardBlocks);
}

void layer_norm(const Rows& rows, const void* input, const void* branch, const float* weight,
                const float* bias, float eps, void* sum, void* output, float* statistics,
                cudaStream_t stream) {
  dispatch_rows(rows, [&](auto x, auto y, auto vectors) {
    using X = decltype(x);
    using Y = decltype(y);
    dispatch(branch != nullptr, [&](auto has_branch) {
      layer_norm_kernel<X, Y, vectors.value, has_branch.value>
          <<<blocks_of(rows, 16), dim3(kWarp, kWarps), 0, stream>>>(
              rows.rows, rows.size, static_cast<const X*>(input), static_cast<const Y*>(branch), weight, bias,
              eps, static_cast<X*>(sum), static_cast<Y*>(output), statistics);
    });
  });
}

void layer_norm_backward(const Rows& rows, const void* gradient, const void* sum_gradient, const void* sum,
                         const float* weight, const float* statistics, void* input_gradient,
                         void* branch_gradient, float* weight_gradient, float* bias_gradient, float* partial,
                         cudaStream_t stream) {
  const int blocks = blocks_of(rows, kBackwardBlocks);
  dispatch_rows(rows, [&](auto x, auto y, auto vectors) {
    using X = decltype(x);
    using Y = decltype(y);
    layer_norm_backward_kernel<X, Y, vectors.value><<<blocks, dim3(kWarp, kWarps), 0, stream>>>(
        rows.rows, rows.size, static_cast<const Y*>(gradient), static_cast<const X*>(sum_gradient),
        static_cast<const X*>(sum), weight, statistics, static_cast<X*>(input_gradient),
        static_cast<Y*>(branch_gradient), partial);
  });
  add_partial_kernel<<<(2 * rows.size + kWarp - 1) / kWarp, dim3(kWarp, kSumRows), 0, stream>>>(
      blocks, rows.size, partial, weight_gradient, bias_gradient);
}

}  // namespace lockstep::cuda
