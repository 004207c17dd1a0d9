#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::train {

// Counts the memory of CPU tensors that are made while it lives, on whatever thread. It
// stands in for the process's allocator meanwhile, so that there is one at a time. Tensors
// may outlive it.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Of tensors that were made and are still there.
  int64_t live_bytes() const;
  // The most that there were at a time since the last reset_peak().
  int64_t peak_bytes() const;
  void reset_peak() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train

namespace lockstep {
class Model;
}

namespace lockstep::train {

// What a forward and a backward take at their most besides the model's states.
struct ActivationMemory {
  int64_t fixed_bytes = 0;
  int64_t sample_bytes = 0;
  // Kept from forward to backward for each sample. With few samples the most may be
  // somewhere else: in the gradient of a large parameter.
  int64_t kept_sample_bytes = 0;

  int64_t of(int64_t samples) const {
    return std::max(fixed_bytes + samples * sample_bytes, samples * kept_sample_bytes);
  }
};

// Measured on the CPU: a forward and a backward of one sample and of two, and a line
// through both. The model is on the CPU, in training mode, and its parameters have this
// dtype; `sample_shape` is that of one floating-point input. Its gradients are lost. One
// at a time in a process: see CountedMemory.
ActivationMemory measure_activations(const Model& model, const std::vector<int64_t>& sample_shape,
                                     c10::ScalarType dtype);

}  // namespace lockstep::train
