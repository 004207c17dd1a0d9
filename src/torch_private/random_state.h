#pragma once

// The states of LibTorch's default random generators.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <mutex>

namespace lockstep::torch_private {

// The state of the device's default generator: uint8 in host memory, with the length that the
// generator reports. Thread-safe.
inline at::Tensor random_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());  // LibTorch's
  return generator.get_state();
}

inline void set_random_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace lockstep::torch_private
