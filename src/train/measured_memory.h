#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::train {

// Counts the memory of CPU tensors that any thread allocates while it exists. It replaces the allocator
// of the process in the meantime, so only one may exist at a time. Tensors may outlive it.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Bytes of tensors that were allocated and still exist.
  int64_t live_bytes() const;
  // The maximum of live_bytes() since the last reset_peak().
  int64_t peak_bytes() const;
  void reset_peak() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train

namespace torch::nn {
class Module;
}

namespace lockstep {
class Model;
}

namespace lockstep::train {

// Peak memory of a forward and a backward, without the model's state.
struct ActivationMemory {
  int64_t fixed_bytes = 0;
  int64_t sample_bytes = 0;
  // Bytes that each sample keeps from forward to backward. With few samples the peak may be elsewhere:
  // in the gradient of a large parameter.
  int64_t kept_sample_bytes = 0;

  int64_t of(int64_t samples) const {
    return std::max(fixed_bytes + samples * sample_bytes, samples * kept_sample_bytes);
  }
};

// Measures on the CPU: a forward and a backward of one sample and of two samples, and a line through
// both. The model must be on the CPU and in training mode. `sample_shape` and `dtype` are those of one
// input, which is filled with zeros. Discards the model's gradients. Only one call at a time in a process:
// see CountedMemory.
ActivationMemory measure_activations(const Model& model, const std::vector<int64_t>& sample_shape,
                                     c10::ScalarType dtype);

// The peak of one forward and its backward: `forward` returns a tensor of which the sum is the loss. As
// above otherwise.
int64_t measure_peak(const torch::nn::Module& module, const std::function<at::Tensor()>& forward);

}  // namespace lockstep::train
