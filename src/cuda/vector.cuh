#pragma once

// Vectors of 16 bytes: what a thread loads and stores at once. Arithmetic is in float.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lockstep::cuda {

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T values[kWidth];
};

template <typename T>
constexpr int kFullWidth = 16 / sizeof(T);

template <int kWidth, typename T>
__device__ Vector<T, kWidth> load(const T* from) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(from);
}

// For values that another block has written in the same launch: not from this multiprocessor's cache.
template <int kWidth>
__device__ void load_written(const float* from, float (&to)[kWidth]) {
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + i));
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = __ldcg(from + i);
  }
}

template <int kWidth>
__device__ void load_floats(const float* from, float (&to)[kWidth]) {
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = from[i];
  }
}

template <int kWidth>
__device__ void store_floats(float* to, const float (&from)[kWidth]) {
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = from[i];
  }
}

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(__half value) { return __half2float(value); }
__device__ inline float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T rounded(float value);
template <>
__device__ inline float rounded<float>(float value) {
  return value;
}
template <>
__device__ inline __half rounded<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <typename T, int kWidth>
__device__ void store(T* to, const float (&from)[kWidth]) {
  Vector<T, kWidth> vector;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) vector.values[i] = rounded<T>(from[i]);
  *reinterpret_cast<Vector<T, kWidth>*>(to) = vector;
}

}  // namespace lockstep::cuda
