// Pools of images in the layout channels last.

#include "cuda/dispatch.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// A vector of channels of one window.
struct Window {
  int64_t image;
  int y, x, channel;
  bool exists;
};

template <int kWidth>
__device__ Window window_of_thread(int64_t count, int height, int width, int channels) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int vectors = channels / kWidth;
  // 64-bit divisions are slow, and images are small: only the first is one.
  const int64_t column_of_all = index / vectors;
  Window window;
  window.channel = static_cast<int>(index - column_of_all * vectors) * kWidth;
  const int64_t row_of_all = column_of_all / width;
  window.x = static_cast<int>(column_of_all - row_of_all * width);
  window.image = row_of_all / height;
  window.y = static_cast<int>(row_of_all - window.image * height);
  window.exists = window.image < count;
  return window;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(Images images, const T* input, T* output, uint8_t* place) {
  const int out_height = images.height / 2, out_width = images.width / 2;
  const Window window = window_of_thread<kWidth>(images.count, out_height, out_width, images.channels);
  if (!window.exists) return;
  const int64_t row = static_cast<int64_t>(images.width) * images.channels;
  const T* corner = input + (window.image * images.height + 2 * window.y) * row +
                    static_cast<int64_t>(2 * window.x) * images.channels + window.channel;
  Vector<T, kWidth> values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = load<kWidth>(corner + (i / 2) * row + (i % 2) * images.channels);
  Vector<T, kWidth> largest = values[0];
  Vector<uint8_t, kWidth> places{};
#pragma unroll
  for (int i = 1; i < 4; ++i) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const float value = as_float(values[i].values[c]);
      if (value > as_float(largest.values[c]) || isnan(value)) {
        largest.values[c] = values[i].values[c];
        places.values[c] = static_cast<uint8_t>(i);
      }
    }
  }
  const int64_t element =
      ((window.image * out_height + window.y) * out_width + window.x) * images.channels + window.channel;
  *reinterpret_cast<Vector<T, kWidth>*>(output + element) = largest;
  *reinterpret_cast<Vector<uint8_t, kWidth>*>(place + element) = places;
}

// Also writes the zeros of a last row and column that are in no window.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(Images images, const T* gradient, const uint8_t* place, T* result) {
  const int out_height = images.height / 2, out_width = images.width / 2;
  const Window window = window_of_thread<kWidth>(images.count, (images.height + 1) / 2,
                                                 (images.width + 1) / 2, images.channels);
  if (!window.exists) return;
  Vector<T, kWidth> values{};
  Vector<uint8_t, kWidth> places;
  const bool is_pooled = window.y < out_height && window.x < out_width;
  if (is_pooled) {
    const int64_t element =
        ((window.image * out_height + window.y) * out_width + window.x) * images.channels + window.channel;
    values = load<kWidth>(gradient + element);
    places = load<kWidth>(place + element);
  }
  const int64_t row = static_cast<int64_t>(images.width) * images.channels;
  T* corner = result + (window.image * images.height + 2 * window.y) * row +
              static_cast<int64_t>(2 * window.x) * images.channels + window.channel;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * window.y + i / 2 >= images.height || 2 * window.x + i % 2 >= images.width) continue;
    float own[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      own[c] = is_pooled && places.values[c] == i ? as_float(values.values[c]) : 0;
    }
    store(corner + (i / 2) * row + (i % 2) * images.channels, own);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    corner_mean_kernel(Images images, int size, const T* input, T* output) {
  const Window window = window_of_thread<kWidth>(images.count, 1, 1, images.channels);
  if (!window.exists) return;
  const T* image = input + window.image * images.height * images.width * images.channels + window.channel;
  float sums[kWidth] = {};
  for (int y = 0; y < size; ++y) {
    const T* row = image + static_cast<int64_t>(y) * images.width * images.channels;
#pragma unroll 8
    for (int x = 0; x < size; ++x) {
      const Vector<T, kWidth> values = load<kWidth>(row + static_cast<int64_t>(x) * images.channels);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sums[c] += as_float(values.values[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kWidth; ++c) sums[c] /= static_cast<float>(size * size);
  store(output + window.image * images.channels + window.channel, sums);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    corner_mean_backward_kernel(Images images, int size, const T* gradient, T* result) {
  const Window window = window_of_thread<kWidth>(images.count, images.height, images.width, images.channels);
  if (!window.exists) return;
  float own[kWidth] = {};
  if (window.y < size && window.x < size) {
    const Vector<T, kWidth> values = load<kWidth>(gradient + window.image * images.channels + window.channel);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) own[c] = as_float(values.values[c]) / static_cast<float>(size * size);
  }
  store(result +
            ((window.image * images.height + window.y) * images.width + window.x) *
                static_cast<int64_t>(images.channels) +
            window.channel,
        own);
}

template <typename Run>
void for_images(const Images& images, int height, int width, const Run& run) {
  dispatch(images.element, images.channels, images.is_aligned, [&](auto kind) {
    run(kind, blocks_for(images.count * height * width * (images.channels / kind.kWidth)));
  });
}

}  // namespace

void max_pool(const Images& images, const void* input, void* output, uint8_t* place, cudaStream_t stream) {
  for_images(images, images.height / 2, images.width / 2, [&](auto kind, unsigned blocks) {
    using T = typename decltype(kind)::Type;
    max_pool_kernel<T, kind.kWidth><<<blocks, kThreads, 0, stream>>>(images, static_cast<const T*>(input),
                                                                     static_cast<T*>(output), place);
  });
}

void max_pool_backward(const Images& images, const void* gradient, const uint8_t* place, void* result,
                       cudaStream_t stream) {
  for_images(images, (images.height + 1) / 2, (images.width + 1) / 2, [&](auto kind, unsigned blocks) {
    using T = typename decltype(kind)::Type;
    max_pool_backward_kernel<T, kind.kWidth><<<blocks, kThreads, 0, stream>>>(
        images, static_cast<const T*>(gradient), place, static_cast<T*>(result));
  });
}

void corner_mean(const Images& images, int size, const void* input, void* output, cudaStream_t stream) {
  for_images(images, 1, 1, [&](auto kind, unsigned blocks) {
    using T = typename decltype(kind)::Type;
    corner_mean_kernel<T, kind.kWidth><<<blocks, kThreads, 0, stream>>>(
        images, size, static_cast<const T*>(input), static_cast<T*>(output));
  });
}

void corner_mean_backward(const Images& images, int size, const void* gradient, void* result,
                          cudaStream_t stream) {
  for_images(images, images.height, images.width, [&](auto kind, unsigned blocks) {
    using T = typename decltype(kind)::Type;
    corner_mean_backward_kernel<T, kind.kWidth><<<blocks, kThreads, 0, stream>>>(
        images, size, static_cast<const T*>(gradient), static_cast<T*>(result));
  });
}

}  // namespace lockstep::cuda
