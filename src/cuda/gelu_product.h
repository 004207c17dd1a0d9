#pragma once

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <array>
#include <map>

#include "base/mutex.h"

namespace lockstep::cuda {

// before = input * weight^T + bias, and output = gelu(before), by cuBLASLt while it stores the product:
// LibTorch has no such epilogue. All matrices are row-major, of one 16-bit type, with rows of multiples of 16
// bytes, and all tensors are on one device, at multiples of 16 bytes. In backward cuBLASLt computes the
// derivative of gelu in a kernel of its own, which is slower than ours.
//
// Thread-safe; starts work on the current stream and waits for nothing.
class GeluProduct {
 public:
  void run(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
           const at::Tensor& before, const at::Tensor& output);

 private:
  using Key = std::array<int64_t, 6>;  // device, rows, outputs, inputs, element type, alignment

  base::Mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::cuda
