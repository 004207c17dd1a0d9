// Batch norm in training with what follows it in residual networks. Every kernel reads or writes each pixel
// once; a thread keeps its channels and walks over rows.

#include <algorithm>

#include "cuda/dispatch.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = kThreadsOfNorm;

// The blocks of a kernel that one multiprocessor runs at once.
template <typename Kernel>
int resident_blocks(Kernel kernel) {
  int blocks = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0) != cudaSuccess) return 1;
  return std::clamp(blocks, 1, kMaxResidentBlocks);
}

// Sums `values` over the rows of the block; the result is in the threads of row 0. Afterwards `shared` must
// not be written before the next __syncthreads().
template <int kValues>
__device__ void sum_over_rows(float (&values)[kValues], float* shared) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int v = 0; v < kValues; ++v) shared[v * kThreads + thread] = values[v];
  for (int rows = blockDim.y; rows > 1;) {
    const int half = (rows + 1) / 2;
    __syncthreads();
    if (threadIdx.y < rows - half) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        shared[v * kThreads + thread] += shared[v * kThreads + thread + half * blockDim.x];
      }
    }
    rows = half;
  }
#pragma unroll
  for (int v = 0; v < kValues; ++v) values[v] = shared[v * kThreads + thread];
}

// Whether this block is the last of its group of columns; it then sees what the others have written.
__device__ bool is_last_of_group(int* counters) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    is_last = atomicAdd(counters + blockIdx.x, 1) == static_cast<int>(gridDim.y) - 1;
    if (is_last) counters[blockIdx.x] = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

// Adds the blocks' sums of kSums values for each channel, in the same order every time. Returns whether this
// thread has the totals of its channels in `sums`.
template <int kSums, int kWidth>
__device__ bool add_blocks(float (&sums)[kSums * kWidth], const SumMemory& memory, int channels, int channel,
                           bool is_inside, float* shared) {
  sum_over_rows(sums, shared);
  const auto place = [&](int chunk, int sum) {
    return memory.partial + (static_cast<int64_t>(chunk) * kSums + sum) * channels + channel;
  };
  if (gridDim.y == 1) return threadIdx.y == 0 && is_inside;
  if (threadIdx.y == 0 && is_inside) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      float part[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) part[i] = sums[s * kWidth + i];
      store_floats(place(blockIdx.y, s), part);
    }
  }
  if (!is_last_of_group(memory.counters)) return false;
#pragma unroll
  for (int v = 0; v < kSums * kWidth; ++v) sums[v] = 0;
  if (is_inside) {
#pragma unroll 4
    for (int chunk = threadIdx.y; chunk < gridDim.y; chunk += blockDim.y) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        float part[kWidth];
        load_written(place(chunk, s), part);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[s * kWidth + i] += part[i];
      }
    }
  }
  sum_over_rows(sums, shared);
  return threadIdx.y == 0 && is_inside;
}

__device__ uint64_t key_of(const RandomState& random) {
  uint64_t seed = random.seed, offset = random.offset;
  if (random.seed_address != nullptr) {
    seed = static_cast<uint64_t>(*random.seed_address);
    offset += static_cast<uint64_t>(*random.offset_address);
  }
  // The finaliser of splitmix64: neighbouring offsets have unrelated keys.
  uint64_t key = seed * 0xD1342543DE82EF95ULL + offset * 0x9E3779B97F4A7C15ULL;
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
  return key ^ (key >> 31);
}

// 32 random bits for a pair of elements.
__device__ uint32_t random_bits(uint64_t key, uint32_t pair) {
  uint32_t bits = pair ^ static_cast<uint32_t>(key);
  bits = (bits ^ (bits >> 16)) * 0x7FEB352DU;
  bits = (bits ^ (bits >> 15)) + static_cast<uint32_t>(key >> 32);
  bits *= 0x846CA68BU;
  return bits ^ (bits >> 16);
}

// Multiplies by the mask of dropout; `element` is the position of the first value in the tensor.
template <int kWidth>
__device__ void drop(float (&values)[kWidth], uint64_t key, int64_t element, uint32_t threshold,
                     float scale) {
  if constexpr (kWidth == 1) {
    const uint32_t bits = random_bits(key, static_cast<uint32_t>(element >> 1));
    const uint32_t own = (element & 1) != 0 ? bits >> 16 : bits & 0xFFFFU;
    values[0] = own < threshold ? 0 : values[0] * scale;
  } else {
    const auto pair = static_cast<uint32_t>(element >> 1);
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      const uint32_t bits = random_bits(key, pair + i / 2);
      values[i] = (bits & 0xFFFFU) < threshold ? 0 : values[i] * scale;
      values[i + 1] = (bits >> 16) < threshold ? 0 : values[i + 1] * scale;
    }
  }
}

struct Walk {
  int64_t rows;
  int channels;
};

// Calls body(row, loaded...) for the rows of this thread, with kUnroll rows of each source in flight.
template <int kWidth, typename T, typename Body, typename... Sources>
__device__ void for_rows(const Walk& walk, int channel, bool is_inside, const Body& body,
                         const Sources*... sources) {
  if (!is_inside) return;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y * kUnroll;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.y * kUnroll + threadIdx.y;
       first < walk.rows; first += step) {
    Vector<T, kWidth> loaded[sizeof...(Sources)][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * static_cast<int>(blockDim.y);
      if (row < walk.rows) {
        const int64_t element = row * walk.channels + channel;
        int source = 0;
        ((loaded[source++][u] = load<kWidth>(sources + element)), ...);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * static_cast<int>(blockDim.y);
      if (row < walk.rows) {
        if constexpr (sizeof...(Sources) == 1) {
          body(row * walk.channels + channel, loaded[0][u]);
        } else {
          body(row * walk.channels + channel, loaded[0][u], loaded[1][u]);
        }
      }
    }
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(Walk walk, const T* input, const float* weight, const float* bias, float eps,
                      NormStatistics result, RunningStatistics running, DropoutMask dropout,
                      RandomState random, SumMemory memory) {
  __shared__ float shared[2 * kWidth * kThreads];
  const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  const bool is_inside = channel < walk.channels;
  // Sums of differences to one value of the channel do not cancel where the mean is large.
  float origin[kWidth];
  float sums[2 * kWidth] = {};
  if (is_inside) {
    const Vector<T, kWidth> first = load<kWidth>(input + channel);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) origin[i] = as_float(first.values[i]);
  }
  for_rows<kWidth, T>(
      walk, channel, is_inside,
      [&](int64_t, const Vector<T, kWidth>& x) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float difference = as_float(x.values[i]) - origin[i];
          sums[i] += difference;
          sums[kWidth + i] = fmaf(difference, difference, sums[kWidth + i]);
        }
      },
      input);
  if (!add_blocks<2, kWidth>(sums, memory, walk.channels, channel, is_inside, shared)) return;
  const auto count = static_cast<float>(walk.rows);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int c = channel + i;
    const float distance = sums[i] / count;
    const float mean = origin[i] + distance;
    const float variance = fmaxf(sums[kWidth + i] / count - distance * distance, 0);
    const float inverse_std = rsqrtf(variance + eps);
    const float scale = weight[c] * inverse_std;
    result.mean[c] = mean;
    result.inverse_std[c] = inverse_std;
    result.scale[c] = scale;
    result.shift[c] = fmaf(-mean, scale, bias[c]);
    if (running.mean != nullptr) {
      const float unbiased = variance * (count / (count - 1));
      running.mean[c] = running.momentum * mean + (1 - running.momentum) * running.mean[c];
      running.variance[c] = running.momentum * unbiased + (1 - running.momentum) * running.variance[c];
    }
  }
  if (channel == 0) {
    if (running.batches != nullptr) *running.batches += 1;
    if (dropout.threshold != 0) *dropout.key = key_of(random);
  }
}

template <typename T, int kWidth, bool kDrops, bool kHasShortcut>
__global__ void __launch_bounds__(kThreads)
    normalize_relu_kernel(Walk walk, const T* input, const float* scale, const float* shift,
                          DropoutMask dropout, const T* shortcut, const float* shortcut_bias, T* output) {
  const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  const bool is_inside = channel < walk.channels;
  float scales[kWidth], shifts[kWidth], biases[kWidth] = {};
  uint64_t key = 0;
  if (is_inside) {
    load_floats(scale + channel, scales);
    load_floats(shift + channel, shifts);
    if (kHasShortcut && shortcut_bias != nullptr) load_floats(shortcut_bias + channel, biases);
    if (kDrops) key = *dropout.key;
  }
  const auto normalized = [&](int64_t element, const Vector<T, kWidth>& x, float(&y)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float value = fmaf(as_float(x.values[i]), scales[i], shifts[i]);
      y[i] = value < 0 ? 0 : value;  // keeps a NaN
    }
    if constexpr (kDrops) drop(y, key, element, dropout.threshold, dropout.scale);
  };
  if constexpr (kHasShortcut) {
    for_rows<kWidth, T>(
        walk, channel, is_inside,
        [&](int64_t element, const Vector<T, kWidth>& x, const Vector<T, kWidth>& other) {
          float y[kWidth];
          normalized(element, x, y);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) y[i] += as_float(other.values[i]) + biases[i];
          store(output + element, y);
        },
        input, shortcut);
  } else {
    for_rows<kWidth, T>(
        walk, channel, is_inside,
        [&](int64_t element, const Vector<T, kWidth>& x) {
          float y[kWidth];
          normalized(element, x, y);
          store(output + element, y);
        },
        input);
  }
}

// The gradient after dropout and ReLU, before the norm: `g` becomes it.
template <typename T, int kWidth, bool kDrops>
__device__ void mask_gradient(float (&g)[kWidth], const Vector<T, kWidth>& x, const float (&scales)[kWidth],
                              const float (&shifts)[kWidth], const DropoutMask& dropout, uint64_t key,
                              int64_t element) {
  if constexpr (kDrops) drop(g, key, element, dropout.threshold, dropout.scale);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    // The same arithmetic as in forward.
    if (fmaf(as_float(x.values[i]), scales[i], shifts[i]) <= 0) g[i] = 0;
  }
}

template <typename T, int kWidth, bool kDrops, bool kHasBias>
__global__ void __launch_bounds__(kThreads)
    gradient_sums_kernel(Walk walk, const T* gradient, const T* input, NormStatistics batch,
                         DropoutMask dropout, NormGradients result, SumMemory memory) {
  constexpr int kSums = kHasBias ? 3 : 2;
  __shared__ float shared[kSums * kWidth * kThreads];
  const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  const bool is_inside = channel < walk.channels;
  float scales[kWidth], shifts[kWidth], means[kWidth];
  uint64_t key = 0;
  if (is_inside) {
    load_floats(batch.scale + channel, scales);
    load_floats(batch.shift + channel, shifts);
    load_floats(batch.mean + channel, means);
    if (kDrops) key = *dropout.key;
  }
  float sums[kSums * kWidth] = {};
  for_rows<kWidth, T>(
      walk, channel, is_inside,
      [&](int64_t element, const Vector<T, kWidth>& dy, const Vector<T, kWidth>& x) {
        float g[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          g[i] = as_float(dy.values[i]);
          if constexpr (kHasBias) sums[2 * kWidth + i] += g[i];
        }
        mask_gradient<T, kWidth, kDrops>(g, x, scales, shifts, dropout, key, element);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          sums[i] += g[i];
          sums[kWidth + i] = fmaf(g[i], as_float(x.values[i]) - means[i], sums[kWidth + i]);
        }
      },
      gradient, input);
  if (!add_blocks<kSums, kWidth>(sums, memory, walk.channels, channel, is_inside, shared)) return;
  const float per_row = 1 / static_cast<float>(walk.rows);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int c = channel + i;
    const float inverse_std = batch.inverse_std[c];
    const float weight_gradient = sums[kWidth + i] * inverse_std;
    result.weight[c] = weight_gradient;
    result.bias[c] = sums[i];
    if constexpr (kHasBias) result.shortcut_bias[c] = sums[2 * kWidth + i];
    const float slope = -scales[i] * weight_gradient * inverse_std * per_row;
    result.slope[c] = slope;
    result.offset[c] = -scales[i] * sums[i] * per_row - slope * means[i];
  }
}

template <typename T, int kWidth, bool kDrops>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(Walk walk, const T* gradient, const T* input, NormStatistics batch,
                          DropoutMask dropout, const float* slope, const float* offset, T* result) {
  const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  const bool is_inside = channel < walk.channels;
  float scales[kWidth], shifts[kWidth], slopes[kWidth], offsets[kWidth];
  uint64_t key = 0;
  if (is_inside) {
    load_floats(batch.scale + channel, scales);
    load_floats(batch.shift + channel, shifts);
    load_floats(slope + channel, slopes);
    load_floats(offset + channel, offsets);
    if (kDrops) key = *dropout.key;
  }
  for_rows<kWidth, T>(
      walk, channel, is_inside,
      [&](int64_t element, const Vector<T, kWidth>& dy, const Vector<T, kWidth>& x) {
        float g[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] = as_float(dy.values[i]);
        mask_gradient<T, kWidth, kDrops>(g, x, scales, shifts, dropout, key, element);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          g[i] = fmaf(scales[i], g[i], fmaf(slopes[i], as_float(x.values[i]), offsets[i]));
        }
        store(result + element, g);
      },
      gradient, input);
}

// Starts a kernel whose first argument is the walk, on tiles that fill the device.
template <auto kKernel, typename... Arguments>
void start(const Pixels& pixels, cudaStream_t stream, const Arguments&... arguments) {
  static const int blocks = resident_blocks(kKernel);
  const Tiles tiles = tiles_of(pixels, blocks);
  const dim3 grid(static_cast<unsigned>(tiles.groups), static_cast<unsigned>(tiles.chunks));
  const dim3 block(static_cast<unsigned>(tiles.columns), static_cast<unsigned>(tiles.rows));
  kKernel<<<grid, block, 0, stream>>>(Walk{pixels.rows, pixels.channels}, arguments...);
}

}  // namespace

void statistics(const Pixels& pixels, const void* input, const float* weight, const float* bias, float eps,
                const NormStatistics& result, const RunningStatistics& running, const DropoutMask& dropout,
                const RandomState& random, const SumMemory& memory, cudaStream_t stream) {
  dispatch(pixels.element, pixels.channels, pixels.is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    start<statistics_kernel<T, kind.kWidth>>(pixels, stream, static_cast<const T*>(input), weight, bias, eps,
                                             result, running, dropout, random, memory);
  });
}

void normalize_relu(const Pixels& pixels, const void* input, const float* scale, const float* shift,
                    const DropoutMask& dropout, const void* shortcut, const float* shortcut_bias,
                    void* output, cudaStream_t stream) {
  dispatch(pixels.element, pixels.channels, pixels.is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    dispatch(dropout.threshold != 0, [&](auto drops) {
      dispatch(shortcut != nullptr, [&](auto has_shortcut) {
        start<normalize_relu_kernel<T, kind.kWidth, drops.value, has_shortcut.value>>(
            pixels, stream, static_cast<const T*>(input), scale, shift, dropout,
            static_cast<const T*>(shortcut), shortcut_bias, static_cast<T*>(output));
      });
    });
  });
}

void gradient_sums(const Pixels& pixels, const void* gradient, const void* input, const NormStatistics& batch,
                   const DropoutMask& dropout, const NormGradients& result, const SumMemory& memory,
                   cudaStream_t stream) {
  dispatch(pixels.element, pixels.channels, pixels.is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    dispatch(dropout.threshold != 0, [&](auto drops) {
      dispatch(result.shortcut_bias != nullptr, [&](auto has_bias) {
        start<gradient_sums_kernel<T, kind.kWidth, drops.value, has_bias.value>>(
            pixels, stream, static_cast<const T*>(gradient), static_cast<const T*>(input), batch, dropout,
            result, memory);
      });
    });
  });
}

void input_gradient(const Pixels& pixels, const void* gradient, const void* input,
                    const NormStatistics& batch, const DropoutMask& dropout, const float* slope,
                    const float* offset, void* result, cudaStream_t stream) {
  dispatch(pixels.element, pixels.channels, pixels.is_aligned, [&](auto kind) {
    using T = typename decltype(kind)::Type;
    dispatch(dropout.threshold != 0, [&](auto drops) {
      start<input_gradient_kernel<T, kind.kWidth, drops.value>>(
          pixels, stream, static_cast<const T*>(gradient), static_cast<const T*>(input), batch, dropout,
          slope, offset, static_cast<T*>(result));
    });
  });
}

}  // namespace lockstep::cuda
