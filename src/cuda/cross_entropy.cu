// Cross entropy of rows of scores: a block has a row, reads it twice, and writes the gradient over it.

#include "cuda/dispatch.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// A largest value, and the sum of exp(value - largest).
struct ExpSum {
  float largest;
  float sum;
};

__device__ ExpSum joined(const ExpSum& a, const ExpSum& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return a;  // both are empty
  return {largest, a.sum * __expf(a.largest - largest) + b.sum * __expf(b.largest - largest)};
}

__device__ ExpSum joined_over_warp(ExpSum own) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    own = joined(own, {__shfl_xor_sync(0xFFFFFFFFU, own.largest, distance),
                       __shfl_xor_sync(0xFFFFFFFFU, own.sum, distance)});
  }
  return own;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(int classes, T* scores, const int64_t* targets, int64_t ignored, float* losses,
                         bool with_gradient) {
  T* const row = scores + static_cast<int64_t>(blockIdx.x) * classes;
  const int64_t target = targets[blockIdx.x];
  const bool counts = target != ignored;
  ExpSum own{-INFINITY, 0};
  if (counts) {
#pragma unroll 2
    for (int first = threadIdx.x * kWidth; first < classes; first += kThreads * kWidth) {
      const Vector<T, kWidth> values = load<kWidth>(row + first);
      float largest = as_float(values.values[0]);
#pragma unroll
      for (int i = 1; i < kWidth; ++i) largest = fmaxf(largest, as_float(values.values[i]));
      float sum = 0;
      const float base = fmaxf(own.largest, largest);
      if (base != -INFINITY) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum += __expf(as_float(values.values[i]) - base);
        own = {base, own.sum * __expf(own.largest - base) + sum};
      }
    }
  }
  __shared__ ExpSum shared[kWarps];
  __shared__ float total;
  own = joined_over_warp(own);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x < 32) {
    own = threadIdx.x < kWarps ? shared[threadIdx.x] : ExpSum{-INFINITY, 0};
    own = joined_over_warp(own);
    if (threadIdx.x == 0) {
      total = own.largest + logf(own.sum);
      // A class that does not exist: the loss shows it, as nothing can be thrown here.
      const bool exists = target >= 0 && target < classes;
      losses[blockIdx.x] = !counts ? 0 : exists ? total - as_float(row[target]) : NAN;
    }
  }
  if (!with_gradient) return;
  __syncthreads();
  const float log_sum = total;
  for (int first = threadIdx.x * kWidth; first < classes; first += kThreads * kWidth) {
    float gradient[kWidth] = {};
    if (counts) {
      const Vector<T, kWidth> values = load<kWidth>(row + first);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        gradient[i] = __expf(as_float(values.values[i]) - log_sum) - (first + i == target ? 1 : 0);
      }
    }
    store(row + first, gradient);
  }
}

}  // namespace

void cross_entropy(int64_t rows, int classes, Element element, bool is_aligned, void* scores,
                   const int64_t* targets, int64_t ignored, float* losses, bool with_gradient,
                   cudaStream_t stream) {
  dispatch(element, classes, is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    cross_entropy_kernel<T, kind.kWidth><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        classes, static_cast<T*>(scores), targets, ignored, losses, with_gradient);
  });
}

}  // namespace lockstep::cuda
